"""A thousand short runs in one sweep: what the processes hold on to.

python benchmarks/many_runs.py             # 1,000 runs in two processes, minutes
python benchmarks/many_runs.py --quick     # 100 runs in one

Memory, open files and processes after a tenth of the runs, when everything is compiled and warm, and at the end.
"""

import argparse
import os
import tempfile
import time
from multiprocessing import resource_tracker
from pathlib import Path

from tddelta.experiments import Outcome
from tddelta.experiments.sweeping import plan, work

STUDY = """
environments = "Catch-bsuite"
agents = "ppo-delta"
seeds = {runs}
steps = 512
[settings]
environments = 8
rollout_length = 16
minibatches = 1
epochs = 1
hidden_sizes = [8]
"""


class Use:
    """Resources that this process and its workers use."""

    def __init__(self) -> None:
        self.memory, self.files, self.processes = self._now()

    def _now(self) -> tuple[int, int, int]:
        processes = [os.getpid(), *self._workers()]
        pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in processes)
        files = sum(len(os.listdir(f"/proc/{one}/fd")) for one in processes)
        return pages * os.sysconf("SC_PAGE_SIZE"), files, len(processes)

    def _workers(self) -> list[int]:
        place = Path(f"/proc/self/task/{os.getpid()}/children")
        found = [int(one) for one in place.read_text().split()]
        # Python's own keeper of semaphores stays until this process ends
        return [one for one in found if b"resource_tracker" not in Path(f"/proc/{one}/cmdline").read_bytes()]

    def __str__(self) -> str:
        return f"{self.memory / 2**20:.0f} MiB, {self.files} open files, {self.processes} processes"


def main() -> None:
    """Run the sweep and print what it used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 runs in one process")
    quick = parser.parse_args().quick
    runs, workers = (100, 1) if quick else (1000, 2)
    resource_tracker.ensure_running()  # which stays, with a pipe to it
    uses: dict[int, Use] = {}
    ended = 0

    def say(outcome: Outcome) -> str:
        nonlocal ended
        ended += 1
        if ended in (runs // 10, runs - workers):
            uses[ended] = Use()
        return f"{ended} {outcome.state}" if ended % (runs // 10) == 0 or outcome.state != "finished" else ""

    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder, "study.toml")
        study.write_text(STUDY.format(runs=runs), encoding="utf-8")
        planned, before = plan(study), Use()
        began, processor = time.perf_counter(), time.process_time()
        outcomes = work(planned, workers=workers, say=say)
        seconds, processor = time.perf_counter() - began, time.process_time() - processor
    after = Use()
    warm, late = uses.values()
    print(f"{outcomes.finished} of {runs} runs finished in {seconds:.0f} s")
    print(f"the process that starts them computed for {processor:.1f} s")
    for when, use in (("before", before), ("after a tenth", warm), ("at the end", late), ("afterwards", after)):
        print(f"{when}: {use}")
    print(f"growth of memory: {late.memory / warm.memory - 1:+.1%}")


if __name__ == "__main__":
    main()
