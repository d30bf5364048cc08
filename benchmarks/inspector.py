"""The inspector's page of a 2,000-step game in Chromium: its size, how fast it opens, how smoothly it moves.

    python benchmarks/inspector.py                             needs the extras atari and gym, and Chromium
    python benchmarks/inspector.py --screenshots RUN FOLDER    pictures of the page of a run, for the docs

The game is played with random actions; the critic is made of the rewards that followed and some noise.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import tddelta as tdd
from tddelta.inspector import smaller

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from browser import Browser

GAMES = ["Breakout", "Qbert", "SpaceInvaders", "Zaxxon", "gym:CartPole-v1", "gym:LunarLander-v3"]
READY = "document.documentElement.dataset.frames === 'ready'"
MOVES = """new Promise((done) => {
    const slider = document.getElementById('cursor'), start = performance.now(); let moves = 0;
    const move = () => {
        slider.value = (37 * moves++) % Number(slider.max);
        slider.dispatchEvent(new Event('input'));
        const passed = performance.now() - start;
        if (passed < 3000) requestAnimationFrame(move); else done(1000 * moves / passed);
    };
    requestAnimationFrame(move);
})"""


def random_game(game: str, steps: int) -> dict[str, np.ndarray]:
    """A recording of `steps` steps with random actions: an Atari game in colour, or an environment, "gym:ID"."""
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    atari = not game.startswith("gym:")
    if atari:
        environment = gymnasium.make(f"ALE/{game}-v5", frameskip=4)
    else:
        environment = gymnasium.make(game.removeprefix("gym:"), render_mode="rgb_array")
    rng = np.random.default_rng(0)
    environment.action_space.seed(0)
    observation, info = environment.reset(seed=0)
    scales = tdd.TimeScales.halving(0.99)
    frames, rewards, terminated, truncated, lives = [], [], [], [], []
    for _ in range(steps):
        frames.append(observation if atari else smaller(environment.render()))
        lives.append(info.get("lives", 1))
        observation, reward, over, cut, info = environment.step(environment.action_space.sample())
        rewards.append(reward)
        terminated.append(over)
        truncated.append(cut)
        if over or cut:
            observation, info = environment.reset()
    values = np.zeros((steps + 1, len(scales)))
    for t in reversed(range(steps)):
        values[t] = rewards[t] + np.array(scales.gammas) * values[t + 1] * (not terminated[t])
    deltas = np.diff(values[:-1], axis=1, prepend=0)
    return {
        "frames": np.stack(frames),
        "rewards": np.array(rewards, np.float32),
        "deltas": (deltas + rng.normal(size=deltas.shape) * 0.05 * deltas.std(axis=0)).astype(np.float32),
        "gammas": np.array(scales.gammas),
        "terminated": np.array(terminated),
        "truncated": np.array(truncated),
        "lives": np.array(lives),
        "name": np.array("made-up critic"),
        "environment": np.array(game),
    }


def measure(games: list[str], steps: int) -> None:
    """Print a table of sizes and speeds."""
    print("| game | steps | page, MB | made in, s | opens in, s | cursor moves per second |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        for game in games:
            recording = random_game(game, steps)
            began = time.perf_counter()
            page = tdd.inspect(recording, Path(folder) / f"{game.replace(':', '-')}.html")
            made = time.perf_counter() - began
            opened = browser.open(page, READY)
            moves = browser.run(MOVES)
            size = page.stat().st_size / 1e6
            print(f"| {game} | {steps:,} | {size:.2f} | {made:.1f} | {opened:.2f} | {moves:.0f} |", flush=True)
        if browser.problems:
            sys.exit("\n".join(browser.problems))


def screenshots(run: str, folder: Path) -> None:
    """Pictures of the page of a run: wide and light, and on a phone in the dark."""
    from tddelta.inspector.record import agent_at, record

    policy, name = agent_at(run)
    recording = record(policy, name=name)
    with tempfile.TemporaryDirectory() as temporary, Browser(1280, 780) as browser:
        page = tdd.inspect(recording, temporary, step=len(recording) // 3)
        browser.open(page, READY)
        time.sleep(0.5)
        browser.screenshot(folder / "inspector.png")
        browser.theme("dark")
        browser.resize(390, 780, phone=True)
        time.sleep(0.5)
        browser.screenshot(folder / "inspector-phone.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=GAMES)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--screenshots", nargs=2, metavar=("RUN", "FOLDER"))
    options = parser.parse_args()
    if options.screenshots:
        screenshots(options.screenshots[0], Path(options.screenshots[1]))
    else:
        measure(options.games, options.steps)
