"""Runs every speed benchmark, one after another, and keeps what they print."""

import argparse
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
SCRIPTS = (
    "training_speed.py",
    "seeds_by_command.py",
    "cartpole_sb3.py",
    "targets_speed.py",
    "compile_time.py",
    "tabular_speed.py",
)


def main() -> None:
    """Run them; the exit code says whether all of them ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test; its numbers mean nothing")
    parser.add_argument("--save", type=Path, help="file to which one line of JSON per script is appended")
    given = parser.parse_args()
    failed = []
    for script in SCRIPTS:
        command = [sys.executable, str(FOLDER / script), *(["--quick"] if given.quick else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            failed.append(script)
        elif given.save:
            with given.save.open("a", encoding="utf-8") as file:
                file.write(done.stdout.strip().splitlines()[-1] + "\n")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
