"""A whole training run on disk: what is written, that it is the same again, and what happens when it goes wrong."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deep_environments import Faulty, roll, tiny
from deep_runs import BATCH, UPDATES, cartpole, finished, trained, trained_together
from tddelta import DataError
from tddelta.deep import ppo, training
from tddelta.deep.policy import to_arrays
from tddelta.experiments.display import recent_return
from tddelta.runs import Run, RunWriter, read_parameters

LABELS = ("0.680", "0.840", "0.920", "0.960", "0.980", "0.990")
RESULTS = ("metrics.jsonl", "episodes.npz", "parameters.safetensors", "rollout.npz", "critic.npz")


def contents(run, names=RESULTS):
    return {name: (run.path / name).read_bytes() for name in names}


def parameters_of(run):
    return read_parameters(run.path / "parameters.safetensors")


@pytest.fixture(scope="module")
def run():
    return finished()


def test_the_files_of_a_run(run):
    assert set(contents(run)) < {path.name for path in run.path.iterdir()}
    assert not list(run.path.glob("*.tmp*")) and not (run.path / "evaluations.jsonl").exists()
    assert run.status == {
        "state": "finished",
        "steps": UPDATES * BATCH,
        "updates": UPDATES,
        "episodes": len(run.episodes["steps"]),
        "message": None,
    }
    config = run.config
    assert (config["environment"], config["agent"]["name"], config["seed"]) == ("CartPole-v1", "ppo-delta", 0)
    assert config["environment_parameters"]["max_steps_in_episode"] == 30
    assert config["settings"]["hidden_sizes"] == [8] and config["settings"]["learning_rate"] == 0.01
    assert run.scales == cartpole().critic_scales
    events = [row["event"] for row in run.timing]
    assert events[:2] == ["start", "compile"] and events[-1] == "end" and "block" in events
    assert "vectorized" not in events
    last = [row for row in run.timing if row["event"] == "block"][-1]
    assert last["return_mean"] == pytest.approx(recent_return(run.episodes), rel=1e-12)


def test_the_metrics_of_a_run(run):
    lines = (run.path / "metrics.jsonl").read_text().splitlines()

    def refuse(constant):
        raise AssertionError(f"{constant} is not strict JSON")

    rows = [json.loads(line, parse_constant=refuse) for line in lines]
    assert len(rows) == UPDATES
    names = ["update", "steps", "episodes", "return_mean", "length_mean", "policy_loss", "value_loss"]
    names += ["explained_variance", "value_mean", "entropy", "approximate_kl", "clip_fraction"]
    names += ["gradient_norm", "learning_rate"]
    for name in ("value_loss", "explained_variance", "value_mean"):
        names += [f"{name}/gamma={label}" for label in LABELS]
    assert all(list(row) == names for row in rows)
    metrics = run.metrics
    np.testing.assert_array_equal(metrics["update"], np.arange(1, UPDATES + 1))
    np.testing.assert_array_equal(metrics["steps"], BATCH * np.arange(1, UPDATES + 1))
    assert np.all(np.diff(metrics["episodes"]) >= 0)
    losses = sum(metrics[f"value_loss/gamma={label}"] for label in LABELS)
    np.testing.assert_allclose(metrics["value_loss"], losses, rtol=1e-5)
    means = sum(metrics[f"value_mean/gamma={label}"] for label in LABELS)
    np.testing.assert_allclose(metrics["value_mean"], means, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(metrics["learning_rate"], 0.01 * (1 - np.arange(UPDATES) / UPDATES), rtol=1e-5)
    # No episode ended in some updates, and some did in others.
    assert 0 < np.isnan(metrics["return_mean"]).sum() < UPDATES


def test_the_episodes_of_a_run_are_those_of_its_metrics(run):
    episodes, metrics = run.episodes, run.metrics
    assert np.all(np.diff(episodes["steps"]) >= 0) and np.all(episodes["steps"] % 3 == 0)
    assert np.all(episodes["lengths"] <= 30) and np.any(episodes["lengths"] == 30)
    np.testing.assert_array_equal(episodes["returns"], episodes["lengths"])
    for index, steps in enumerate(metrics["steps"]):
        here = (episodes["steps"] > steps - BATCH) & (episodes["steps"] <= steps)
        assert metrics["episodes"][index] == np.sum(episodes["steps"] <= steps)
        mean = episodes["returns"][here].mean() if here.any() else np.nan
        np.testing.assert_allclose([metrics["return_mean"][index]], [mean], rtol=1e-5)


def test_progress_of_a_run(run):
    phases = list(dict.fromkeys(news.phase for news in run.news))
    assert phases == ["compiling", "training", "recording"]
    steps = [news.steps for news in run.news]
    assert steps == sorted(steps) and steps[0] == 0 and steps[-1] == UPDATES * BATCH
    assert {news.total_steps for news in run.news} == {UPDATES * BATCH}
    first, *_, last = run.news
    assert first.seconds_left is None and first.steps_per_second is None and first.recent_return is None
    assert last.seconds_left == 0 and last.steps_per_second > 0
    np.testing.assert_allclose(last.recent_return, run.episodes["returns"][-100:].mean(), rtol=1e-5)


def test_recordings_of_a_run(run):
    rollout, critic = run.rollout, run.critic
    length = len(rollout["rewards"])
    assert rollout["observations"].shape == (length, 4) and rollout["deltas"].shape == (length, 6)
    ended = rollout["terminated"] | rollout["truncated"]
    assert ended[-1] and not ended[:-1].any()
    np.testing.assert_allclose(rollout["gammas"], run.scales.gammas, rtol=1e-5)
    assert critic["predicted"].shape == critic["realised"].shape == (4096, 6)
    assert np.all(np.isfinite(critic["predicted"])) and np.isfinite(critic["realised"]).any()


def test_a_seed_gives_the_same_bytes_again_also_with_evaluations(run, tmp_path):
    again = trained(tmp_path / "again", eval_every=300)
    files = (*RESULTS, "config.json", "status.json")
    assert contents(again, files) == contents(run, files)
    assert [row["steps"] for row in again.evaluations] == [312, 600, 912, 960]
    assert {row["mode"] for row in again.evaluations} == {"sampled"}
    assert len({row["seed"] for row in again.evaluations}) == 1
    assert all(row["episodes"] == 128 and row["unfinished"] == 0 for row in again.evaluations)


def test_a_seed_gives_the_same_bytes_in_company(run, tmp_path):
    with ThreadPoolExecutor(3) as pool:
        runs = list(pool.map(lambda seed: trained(tmp_path / str(seed), seed), (2, 0, 1)))
    others = [contents(other) for other in runs]
    assert others[1] == contents(run)
    assert all(others[0][name] != others[1][name] != others[2][name] for name in others[0])


def test_seeds_and_environments_start_differently():
    # Field case B49.
    config = cartpole()
    starts = [training.programs(config).init(config, training.run_key(seed, "train")) for seed in range(4)]
    observations = np.concatenate([state.playing.observation for state in starts])
    assert len(np.unique(observations.round(6), axis=0)) == 12


def test_purposes_never_share_random_numbers():
    keys = [training.run_key(seed, purpose) for seed in range(3) for purpose in ("train", "held-out", "evaluate")]
    assert len({np.asarray(jax.random.key_data(key)).tobytes() for key in keys}) == 9


def test_settings_of_another_kind_of_number_share_a_program(run, tmp_path):
    # An integer, a NumPy number and a float are the same setting.
    config = cartpole(
        value_coefficient=1, learning_rate=np.float64(0.01), entropy_coefficient=np.float32(0.01), clip=jnp.array(0.2)
    )
    assert contents(trained(tmp_path / "run", config=config), ["metrics.jsonl"]) == contents(run, ["metrics.jsonl"])


def test_stopping(run, tmp_path):
    stop = threading.Event()
    stopped = trained(tmp_path / "run", progress=lambda news: news.steps and stop.set(), stop=stop)
    status = stopped.status
    assert status["state"] == "interrupted" and "stopped" in status["message"]
    assert 0 < status["updates"] < UPDATES and status["steps"] == BATCH * status["updates"]
    whole = (run.path / "metrics.jsonl").read_bytes()
    assert whole.startswith((stopped.path / "metrics.jsonl").read_bytes())
    assert len(stopped.metrics["update"]) == status["updates"]
    assert stopped.rollout is None and stopped.critic is None
    assert all(
        np.all(np.isfinite(array)) for array in read_parameters(stopped.path / "parameters.safetensors").values()
    )


def test_stopping_before_the_first_update(tmp_path):
    stop = threading.Event()
    stop.set()
    stopped = trained(tmp_path / "run", stop=stop)
    assert stopped.status["state"] == "interrupted" and stopped.status["steps"] == 0
    assert len(stopped.metrics["update"]) == 0 and (stopped.path / "parameters.safetensors").exists()


# One program for all faults: which environment meets which depends on the seed. The step is in the second update of 40,
# so that blocks of updates follow.
KINDS = ("reward", "observation", "huge", "infinite")


def faulty(faults=()):
    return tiny(Faulty(faults), rollout_length=4, minibatches=2, steps=40 * 12)


@pytest.fixture(scope="module")
def with_faults():
    plain = faulty()
    start = jax.jit(lambda key: ppo.init(plain, key).playing.environment.identity)
    faults = tuple((int(start(training.run_key(seed, "train"))[2]), kind) for seed, kind in enumerate(KINDS))
    return faulty(faults)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "sentence"),
    [
        (0, "Faulty: reward not finite in environment 2, step 7,"),
        (1, "Faulty: observation not finite in environment 2, step 7,"),
        (2, "the loss is not finite in update 2 of ppo-delta on Faulty, after 12 steps"),
        (3, "Faulty: reward not finite in environment 2, step 7,"),
    ],
)
def test_what_is_not_finite_stops_the_run(seed, sentence, with_faults, tmp_path):
    # Field case B27.
    with pytest.raises(DataError, match=rf"{sentence}.* \(.*run/fault\.json has the numbers of that update\)"):
        trained(tmp_path / "run", seed, with_faults, checkpoint_every=0.0)
    run = Run(tmp_path / "run")
    assert run.status["state"] == "failed" and sentence in run.status["message"]
    assert (run.status["updates"], run.status["steps"]) == (1, 12)
    assert len(run.metrics["update"]) == 1
    assert all(np.isfinite(values).all() for name, values in run.metrics.items() if name.startswith("value"))
    fault = json.loads((run.path / "fault.json").read_text(), parse_constant=pytest.fail)
    kind = {"huge": "loss", "infinite": "reward"}.get(KINDS[seed], KINDS[seed])
    assert (fault["fault"], fault["update"], fault["steps_before"]) == (kind, 2, 12)
    place = (None, None) if seed == 2 else (2, 7)
    assert (fault["environment"], fault["environment_step"]) == place
    assert set(fault["metrics"]) == set(run.metrics) - {"update", "steps", "episodes", "return_mean", "length_mean"}
    assert {"NaN", "Infinity"} & {value for value in fault["metrics"].values() if isinstance(value, str)}
    assert all(norm >= 0 for norm in fault["norms_before"].values())
    # The last good checkpoint stays, and going on from it meets the same again.
    assert [path.name for path in (run.path / "checkpoints").iterdir()] == ["0000000001"]
    # The last good parameters: those after the first update.
    programs = training.programs(with_faults)
    state = programs.init(with_faults, training.run_key(seed, "train"))
    initial = to_arrays(state.learned)
    state, _, _ = programs.block(with_faults, state, np.int32(1))
    good, saved = to_arrays(state.learned), parameters_of(run)
    assert set(good) == set(saved) and all(np.isfinite(array).all() for array in saved.values())
    assert all(np.array_equal(good[name], saved[name]) for name in good)
    assert any(not np.array_equal(initial[name], saved[name]) for name in good)
    said = (run.path / "fault.json").read_bytes()
    with (
        RunWriter(run.path, run.config, {}, resume=True) as writer,
        pytest.raises(DataError, match=sentence),
    ):
        training.train_run(with_faults, seed, writer)
    assert (run.path / "fault.json").read_bytes() == said and len(Run(run.path).metrics["update"]) == 1


@pytest.mark.slow
def test_a_run_without_the_fault_goes_on(with_faults, tmp_path):
    assert trained(tmp_path / "run", 7, with_faults).status["state"] == "finished"


def differences(one, other):
    """Largest differences of metrics and parameters."""
    metrics = max(
        np.nanmax(np.abs(one.metrics[name] - other.metrics[name])) for name in one.metrics if "explained" not in name
    )
    tensors = [parameters_of(run) for run in (one, other)]
    return metrics, max(np.abs(tensors[0][name] - tensors[1][name]).max() for name in tensors[0])


@pytest.mark.slow
def test_several_seeds_at_once_are_the_single_runs(run, tmp_path):
    news = []
    trained_together(tmp_path, cartpole(), [3, 0], progress=lambda index, told: news.append((index, told)))
    together = Run(tmp_path / "0")
    assert together.status == run.status
    assert max(differences(run, together)) < 1e-4
    np.testing.assert_array_equal(together.episodes["steps"], run.episodes["steps"])
    assert {"event": "vectorized", "seeds": [3, 0]} in together.timing
    assert {index for index, _ in news} == {0, 1}
    assert max(differences(run, Run(tmp_path / "3"))) > 1e-3


@pytest.mark.slow
def test_one_of_several_seeds_meets_a_fault(with_faults, tmp_path):
    with pytest.raises(DataError, match="environment 2, step 7"):
        trained_together(tmp_path, with_faults, [7, 0])
    good, bad = Run(tmp_path / "7"), Run(tmp_path / "0")
    assert good.status["state"] == "finished" and bad.status["state"] == "failed"
    assert (bad.status["updates"], len(bad.metrics["update"])) == (1, 1)
    assert max(differences(trained(tmp_path / "alone", 7, with_faults), good)) < 1e-4
    with pytest.raises(DataError):
        trained(tmp_path / "bad", 0, with_faults)
    assert max(differences(Run(tmp_path / "bad"), bad)) < 1e-4


@pytest.mark.slow
def test_episodes_are_those_of_a_replay(run):
    config = cartpole()
    programs = training.programs(config)
    state = programs.init(config, training.run_key(0, "train"))
    steps, returns, lengths = [], [], []
    running, count = np.zeros(3), np.zeros(3, int)
    for update in range(UPDATES):
        _, rollout_key, _ = jax.random.split(state.key, 3)
        _, rollout = roll(config, state.learned, state.playing, rollout_key)
        rollout = jax.tree.map(np.asarray, rollout)
        for t in range(8):
            for lane in range(3):
                running[lane] += rollout.rewards[t, lane]
                count[lane] += 1
                if rollout.terminated[t, lane] or rollout.truncated[t, lane]:
                    steps.append(update * BATCH + (t + 1) * 3)
                    returns.append(running[lane])
                    lengths.append(count[lane])
                    running[lane], count[lane] = 0, 0
        state, _, _ = programs.block(config, state, np.int32(1))
    for name, expected in (("steps", steps), ("returns", returns), ("lengths", lengths)):
        np.testing.assert_array_equal(run.episodes[name], expected)


@pytest.mark.slow
def test_one_environment_and_one_step(tmp_path):
    # Field case B26.
    run = trained(tmp_path / "run", config=tiny("CartPole-v1", environments=1, rollout_length=1, steps=5))
    assert run.status["state"] == "finished" and run.status["updates"] == 5
    assert all(np.isfinite(array).all() for array in parameters_of(run).values())
    assert np.isfinite(run.metrics["value_loss"]).all() and np.isnan(run.metrics["explained_variance"]).all()


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux to count memory mappings")
def test_programs_of_many_configurations_are_given_back(monkeypatch):
    # Kept for ever, some fifty configurations in one process were the end of its memory mappings.
    monkeypatch.setattr(training, "PROGRAMS_KEPT", 1)
    mappings = []
    for gamma in (0.9, 0.91, 0.92):
        training.programs(cartpole(gamma=gamma))
        mappings.append(len(Path("/proc/self/maps").read_text().splitlines()))
    assert mappings[2] - mappings[1] < 200
