"""Critics of a frozen policy: what they are measured against, what they learn from, and what is chosen on what."""

import dataclasses
import html
import itertools
import json
import os
import shutil
import signal
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from deep_environments import QUICKLY, tiny
from deep_runs import finished
from host_environments import Counting
from tddelta import CheckpointError, ConfigError, DataError
from tddelta.cli import main
from tddelta.deep import host, probes
from tddelta.deep.agents import AGENTS
from tddelta.deep.policy import Policy
from tddelta.deep.rollout import initial
from tddelta.experiments import critics as module
from tddelta.experiments.critics import Truth, critics, forked, horizon, train_critics, without_limit
from tddelta.report.critics import CriticStudy
from tddelta.report.statistics import summarise

GAMMA, LENGTH = 0.9, 4
BATCH = 24


class Coins(probes.DelayedReward):
    """A chain whose every step has reward 1 with probability ½."""

    def outcome(self, key, state, action):
        return jax.random.bernoulli(key).astype(jnp.float32), state.time >= self.length


COINS = Coins(LENGTH)  # one, whose programs are found again


def exact(observations, length=LENGTH):
    """V of `Coins`: ½ Σ_{k < steps left} γ^k."""
    left = length - np.asarray(observations).argmax(-1)
    return 0.5 * (1 - GAMMA**left) / (1 - GAMMA)


def coins(**settings):
    return tiny(COINS, "ppo", **{"scales": [2, 10], "gamma": GAMMA, **settings})


def policy_of(config):
    return Policy(config, initial(config, jax.random.key(7)))


def frozen(config):
    return module._frozen(policy_of(config), None)


def study(out, *, policy=None, **options):
    given = {"forms": ["ppo", "ppo-delta"], "lam": [0.5, 1.0], "budgets": [BATCH, 3 * BATCH], "seeds": [0, 1, 2]}
    given |= {"tuning_seeds": [100, 101], "states": 12, "continuations": 3, "learning_rate": 0.01, "out": out}
    return critics(policy or policy_of(coins()), **given | options)


@pytest.fixture(scope="module", autouse=True)
def short():
    """Short held-out streams, and programs that are compiled without optimisation: that is most of what tests do."""
    quickly = {"_played": ("count", "light"), "_moved_once": ("light",), "_learned": (), "_begun": (), "_values": ()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "HELD_OUT", 600)
        for name, static in quickly.items():
            compiled = jax.jit(getattr(module, name).__wrapped__, static_argnames=static, compiler_options=QUICKLY)
            patch.setattr(module, name, compiled)
        yield


@pytest.fixture(scope="module")
def done(short, tmp_path_factory):
    """A study, made once."""
    return study(tmp_path_factory.mktemp("critics") / "study")


# ---------------------------------------------------------------- truth


@pytest.mark.parametrize("limit", [None, 2])
def test_forks_agree_with_the_exact_values_beyond_a_time_limit(limit):
    config = coins(environment_kwargs={} if limit is None else {"max_steps_in_episode": limit})
    found = forked(frozen(config), config, states=200, continuations=32, seed=3)
    places = found.observations.argmax(-1)
    assert set(places.tolist()) == set(range(LENGTH if limit is None else limit))
    assert found.cut == 0
    apart = (found.values - exact(found.observations)) / np.sqrt(found.variances)
    assert abs(apart.mean()) < 4 / np.sqrt(len(apart)) and 0.8 < apart.std() < 1.25


def test_a_time_limit_that_terminates_ends_continuations():
    config = coins(environment_kwargs={"max_steps_in_episode": 2}, time_limit="terminate")
    assert without_limit(config) is config
    found = forked(frozen(config), config, states=100, continuations=16, seed=0)
    assert np.all(np.abs(found.values - exact(found.observations, 2)) < 5 * np.sqrt(found.variances))


def test_continuations_are_long_enough():
    assert horizon(0.99) == 688 and 0.99**688 < 1e-3 < 0.99**687
    assert (horizon(0.0), horizon(1.0)) == (1, module.LONGEST)


def test_the_noise_is_subtracted_without_bias():
    rng = np.random.default_rng(0)
    values, predicted, spread = rng.normal(size=30), rng.normal(1.0, 0.5, size=30), rng.uniform(0.2, 1.0, size=30)
    rows = []
    for _ in range(4000):
        drawn = values + spread * rng.normal(size=(5, 30))  # five continuations of each state
        rows.append(Truth(predicted, drawn.mean(0), drawn.var(0, ddof=1) / 5).errors(predicted))
    off = predicted - values
    for name, expected in (("error", np.mean(off**2)), ("centred", np.var(off, ddof=1)), ("bias", off.mean())):
        found = np.array([row[name] for row in rows])
        assert abs(found.mean() - expected) < 4 * found.std() / np.sqrt(len(found)), name


# ---------------------------------------------------------------- streams and critics


def test_the_stream_of_a_seed_is_the_same_for_every_form_and_without_noise():
    config = coins()
    base = module._base(frozen(config), {}, 0.0, BATCH)
    changes = ({"agent": AGENTS["ppo-delta-bootstrap"], "lam": 0.3}, {"reward_noise": 2.0}, {})
    configs = [dataclasses.replace(base, **changed) for changed in changes]
    bootstrap, noisy, found = (module._player(frozen(config), each, 3, 5, "train").steps(20) for each in configs)
    other = module._player(frozen(config), base, 3, 6, "train").steps(20)
    for name, each in itertools.product(
        ("observations", "finals", "rewards", "terminated", "truncated"), (bootstrap, noisy)
    ):
        np.testing.assert_array_equal(getattr(found, name), getattr(each, name), err_msg=name)
    assert not np.array_equal(found.rewards, other.rewards)
    assert 1.0 < np.std(noisy.reward_noise) < 3.0 and found.reward_noise is None


@pytest.mark.parametrize("alone", [True, False])
def test_the_actor_stays_as_it_is_to_the_bit(alone):
    base = module._base(frozen(coins()), {}, 0.0, BATCH)
    config = dataclasses.replace(
        module._without_actor(base) if alone else base,
        agent=AGENTS["ppo-delta"].replace(advantages=module.zero_advantages),
    )
    before = module._begun(config, jax.random.key(0))
    player = module._player(frozen(coins()), base, base.environments, 0, "train")
    steps = player.steps(base.rollout_length)
    after, fault = module._learned(config, before, steps, player.observations, jax.random.key(1))
    assert fault == 0
    networks = [state.learned.parameters.network if alone else state.learned.parameters for state in (before, after)]
    for name in ("policy_trunk", "policy"):
        old, new = (jax.tree.leaves(getattr(network, name)) for network in networks)
        assert all(np.array_equal(*pair) for pair in zip(old, new, strict=True)), name
    old, new = (jax.tree.leaves((network.critic_trunk, network.critic)) for network in networks)
    assert not any(np.array_equal(*pair) for pair in zip(old, new, strict=True))


def test_critics_learn_the_exact_values():
    config = coins()
    base = module._base(frozen(config), {}, 0.0, 100 * BATCH)
    seen = np.eye(LENGTH, dtype=np.float32)
    truth = Truth(seen, exact(seen), np.zeros(LENGTH))
    configs = module._configs(base, [module._form("ppo-delta-bootstrap", [0.9])], [0.01])
    ((first, last),) = train_critics(frozen(config), list(configs.values()), 0, truth, [1, 100])
    assert (first["steps"], last["steps"]) == (BATCH, 100 * BATCH)
    assert last["error"] < 0.05 < first["error"]


def test_with_one_scale_all_forms_agree(tmp_path):
    forms = ["ppo", "ppo-multi", "ppo-delta-bootstrap"]
    found = study(tmp_path / "s", policy=policy_of(coins(scales="single")), forms=forms, lam=0.8, seeds=1)
    for form, name in itertools.product(forms, ("centred", "error", "bias")):
        np.testing.assert_allclose(found.errors(form, 1, name), found.errors("ppo", 1, name), rtol=1e-3, atol=1e-5)
    assert not found.tuned and found.errors("ppo", 1) > 0


def test_a_critic_that_diverges_has_no_error(tmp_path):
    found = study(tmp_path / "s", forms=["ppo"], lam=1.0, learning_rate=[1e30, 0.01], seeds=1)
    assert [found.chosen("ppo", budget)[2] for budget in (0, 1)] == [0.01, 0.01]
    rows = [row for path in Path(found.path).glob("cells/*/*1e+30*") for row in json.loads(path.read_text())["budgets"]]
    assert rows and all(row["error"] is None or row["error"] > 1e6 for row in rows)


def test_a_run_brings_its_noise_and_anchor_and_leaves_weights_out(tmp_path):
    options = {"scales": [2, 10], "gamma": GAMMA, "reward_noise": 0.5, "anchor": 1, "component_weights": (1.0, 2.0)}
    config = tiny(COINS, "ppo-delta", **options)
    anchored = study(tmp_path / "a", policy=policy_of(config), lam=1.0, seeds=1)
    assert anchored.question["reward_noise"] == 0.5 and anchored.question["settings"]["anchor"] == 1
    plain = study(tmp_path / "b", policy=policy_of(config), lam=1.0, seeds=1, anchor=0)
    for form in ("ppo", "ppo-delta"):
        assert abs(anchored.errors(form, 0, "bias")[0]) < abs(plain.errors(form, 0, "bias")[0])


# ---------------------------------------------------------------- choice and tests


def cell(study, agent, lam, seed):
    path = study.path / "cells" / f"seed-{seed}" / f"{agent}_lam-{lam}_rate-0.01.json"
    return json.loads(path.read_text())["budgets"]


def test_tuning_never_uses_seeds_that_are_reported(done):
    for form, budget in itertools.product(("ppo", "ppo-delta"), (0, 1)):
        means = {lam: np.mean([cell(done, form, lam, s)[budget]["centred"] for s in (100, 101)]) for lam in (0.5, 1.0)}
        assert done.chosen(form, budget) == (form, min(means, key=means.get), 0.01)
    trained = {(path.parent.name, path.name) for path in done.path.glob("cells/*/*.json")}
    chosen = {done.chosen(form, budget) for form in done.forms for budget in (0, 1)}
    reported = {(f"seed-{seed}", module._file(*one)) for seed in (0, 1, 2) for one in chosen}
    assert {one for one in trained if one[0] in ("seed-0", "seed-1", "seed-2")} == reported
    assert len(trained - reported) == 2 * 4


def test_differences_are_paired_and_corrected(done):
    expected = []
    for budget in (0, 1):
        ours, theirs = (
            [cell(done, *done.chosen(form, budget)[:2], seed)[budget]["centred"] for seed in (0, 1, 2)]
            for form in ("ppo-delta", "ppo")
        )
        expected.append((np.mean(ours) - np.mean(theirs), stats.ttest_rel(ours, theirs).pvalue))
    found = done.differences
    assert [(d.form, d.steps) for d in found] == [("ppo-delta", BATCH), ("ppo-delta", 3 * BATCH)]
    np.testing.assert_allclose([(d.test.difference, d.test.p_value) for d in found], expected)
    smaller = min(p for _, p in expected)
    assert min(d.corrected for d in found) == pytest.approx(min(1, 2 * smaller))


def test_the_page_says_what_was_found(done):
    text = html.unescape(done.write().read_text())
    for expected in ("Critics of a frozen policy on Coins", *done.sentences()[:1], "up to 66 steps", "Holm"):
        assert expected in text
    assert {path.name for path in (done.path / "tables").iterdir()} == {
        f"{name}.{kind}" for name in ("errors", "differences", "tuning") for kind in ("csv", "tex")
    }
    assert (done.path / "figures" / "errors.png").exists()
    shares = [record["noise"] for record in done.error_table.records]
    found = done.truth["noise"] / (done.errors("ppo", 0).mean() + done.truth["noise"])
    assert shares[0] == pytest.approx(found) and 0 < found < 1


# ---------------------------------------------------------------- going on


@pytest.mark.parametrize("missing", ["truth.json", "cells/seed-*", "cells"])
def test_a_study_in_progress_says_what_is_missing(missing, done, tmp_path):
    shutil.copytree(done.path, tmp_path / "begun")
    for path in [*(tmp_path / "begun").glob(missing)]:
        if not path.name.startswith("seed-10"):  # those of tuning
            (shutil.rmtree if path.is_dir() else Path.unlink)(path)
    begun = CriticStudy(tmp_path / "begun")
    assert begun.chosen("ppo", 1).agent == "ppo"
    for asked in (begun.summary, begun.write, lambda: begun.error_table):
        with pytest.raises(ConfigError, match="begun has no critics of every form yet: repeat the command"):
            asked()


def test_a_study_goes_on_where_it_was_interrupted(done, tmp_path, monkeypatch):
    out, seeds = tmp_path / "s", []
    trained = module.train_critics

    def interrupted(policy, configs, seed, truth, budgets, stop):
        seeds.append(seed)
        if seed == 1:
            os.kill(os.getpid(), signal.SIGINT)
            while not stop():
                time.sleep(0.01)
            return None
        return trained(policy, configs, seed, truth, budgets, stop)

    monkeypatch.setattr(module, "available_cores", lambda: 1)
    monkeypatch.setattr(module, "train_critics", interrupted)
    with pytest.raises(KeyboardInterrupt):
        study(out)
    assert seeds == [100, 101, 0, 1]
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.glob("cells/*/*.json")}
    monkeypatch.setattr(module, "train_critics", lambda *given: seeds.append(given[2]) or trained(*given))
    found = study(out)
    assert seeds[4:] == [1, 2]
    assert all((path.read_bytes(), path.stat().st_mtime_ns) == kept for path, kept in before.items())
    assert found.cells == done.cells
    with pytest.raises(ConfigError, match=r"is a study of something else, reward_noise 0.0 there and 1.0 now: choose"):
        study(out, reward_noise=1.0)


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(ConfigError, match="holds something else"):
        study(tmp_path)
    with pytest.raises(ConfigError, match="holds no study of critics"):
        CriticStudy(tmp_path)


# ---------------------------------------------------------------- policies


SMALL = {"gamma": 0.5, "rollout_length": 8, "environments": 3, "minibatches": 2}
ACTION = {"environment": probes.ActionReward(), **SMALL}


class Model:
    """An object with `predict`, as models of Stable-Baselines3 have."""

    def predict(self, observations, deterministic=True):
        assert not deterministic
        return np.ones(len(observations), int), None


class Saved(Model):
    """A model with parameters, as those of Stable-Baselines3."""

    def __init__(self, value):
        self.value = value

    def get_parameters(self):
        return {"policy": {"weight": np.float32([self.value])}, "policy.optimizer": {}}


def test_another_model_of_the_same_class_is_another_policy(tmp_path):
    options = {"forms": ["ppo"], "lam": 1.0, "seeds": 1, **ACTION}
    study(tmp_path / "s", policy=Saved(1), **options)
    study(tmp_path / "s", policy=Saved(1), **options)
    with pytest.raises(ConfigError, match=r"is a study of something else, policy\.sha256"):
        study(tmp_path / "s", policy=Saved(2), **options)


def test_damaged_files_are_named_and_a_missing_summary_is_made_again(tmp_path):
    options = {"forms": ["ppo"], "lam": 1.0, "seeds": 1}
    found = study(tmp_path / "s", **options)
    (found.path / "truth.json").unlink()
    assert study(tmp_path / "s", **options).truth == found.truth
    (found.path / "truth.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"truth.json is damaged, .*: repeat the command, which makes it anew"):
        CriticStudy(found.path)
    assert study(tmp_path / "s", **options).truth == found.truth
    (cell,) = found.path.glob("cells/*/*.json")
    cell.write_text("{}")
    with pytest.raises(CheckpointError, match="is damaged: delete it and repeat the command, which trains that"):
        CriticStudy(found.path).write()
    cell.unlink()
    (found.path / "truth.npz").write_bytes(b"PK")
    with pytest.raises(CheckpointError, match=r"truth.npz is damaged \(.*: delete it and repeat the command"):
        study(tmp_path / "s", **options)
    (found.path / "truth.npz").unlink()
    assert study(tmp_path / "s", **options).truth == found.truth


def test_errors_of_zero_have_no_share(tmp_path):
    options = ACTION | {"environment": "tddelta.deep.probes:ConstantReward"}
    found = study(tmp_path / "s", policy=lambda seen: np.zeros(len(seen), int), lam=1.0, seeds=2, **options)
    assert found.truth["variance"] == 0.0
    assert dataclasses.replace(found.differences[0], theirs=summarise([0.0, 0.0])).share is None
    assert "V does not vary" in found.write().read_text()


def test_foreign_policies_in_device_environments(tmp_path):
    found = study(tmp_path / "s", policy=Model(), forms=["ppo"], lam=1.0, seeds=1, **ACTION)
    # action 1 has reward 1 for ever
    assert found.truth["mean"] == pytest.approx(2.0, abs=3e-3) and found.truth["kind"] == "forked"
    assert found.truth["variance"] == pytest.approx(0.0, abs=1e-9)


def test_host_environments_have_realised_returns(tmp_path):
    environment = host.from_factory(Counting, name="Counting")
    options = {"environment": environment, **SMALL}
    found = study(tmp_path / "s", policy=Model(), forms=["ppo"], lam=1.0, seeds=2, reward_noise=0.1, **options)
    with np.load(found.path / "truth.npz") as truth:
        expected = np.array([1.75, 1.5, 1.0])[truth["observations"][:, 0].astype(int)]
        np.testing.assert_allclose(truth["values"], expected)
        assert np.isnan(truth["variances"]).all()
    assert (found.truth["kind"], found.truth["noise"]) == ("realised", 0.0)
    page = found.write().read_text()
    assert "cannot be told from the error" in page
    assert (found.truth["unknown"] > 0) == ("may not be typical of all" in page)
    assert found.noise_share("ppo", 0) is None


def test_a_run_of_the_host_is_played_by_its_own_network(tmp_path):
    config = tiny(host.from_factory(Counting, name="Counting"), "ppo", gamma=0.5)
    found = study(tmp_path / "s", policy=policy_of(config), forms=["ppo"], lam=1.0, seeds=1)
    assert found.truth["mean"] == pytest.approx(4.25 / 3, abs=0.1)


class Broken(Coins):
    def outcome(self, key, state, action):
        return jnp.float32(jnp.nan), jnp.array(False)


def test_a_reward_that_is_no_number_is_named():
    config = tiny(Broken(LENGTH), "ppo")
    base = module._base(frozen(config), {}, 0.0, BATCH)
    seen = np.eye(LENGTH, dtype=np.float32)
    configs = list(module._configs(base, [module._form("ppo", [0.9])], [0.01]).values())
    with pytest.raises(DataError, match="Broken: reward not finite in the stream of seed 4"):
        train_critics(frozen(config), configs, 4, Truth(seen, seen[0], np.zeros(LENGTH)), [1])


# ---------------------------------------------------------------- wrong usage


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"seeds": [0, 100]}, "share 100: nothing may be chosen on seeds that are reported"),
        ({"seeds": [0, 0]}, "seeds must differ; got 0 0"),
        ({"forms": ["ppo", "ppo"]}, "forms must differ; got ppo ppo"),
        ({"forms": ["ppo@x"]}, "an agent and its λ as in ppo@1; got 'ppo@x'"),
        ({"forms": ["ppo@2"]}, r"the λ of forms must be in \[0, 1\]; got 'ppo@2'"),
        ({"forms": ["ppi"]}, "unknown agent 'ppi'"),
        ({"forms": []}, "forms must name at least one"),
        ({"budgets": [1, 2]}, "must differ by whole updates of 24 steps; got 1 2"),
        ({"measure": "mse"}, "measure must be one of centred, error; got 'mse'"),
        ({"states": 1}, "states must be a whole number of at least 2"),
        ({"entropy_coefficient": 0.1}, "entropy_coefficient is fixed for critics of a frozen policy; got 0.1"),
        ({"epoch": 3}, "unknown setting 'epoch': did you mean epochs?"),
        ({"reward_noise": -1.0}, "reward_noise must be at least 0"),
        ({"policy": 3}, "policy must be a run directory, a Policy, a model with predict or a function"),
        ({"policy": Model()}, "a policy that is not a run needs its environment: pass environment="),
        ({"policy": lambda seen: 0, **ACTION}, r"must return finite actions of shape \("),
        ({"policy": lambda seen: np.full(len(seen), 0.5), **ACTION}, "whole numbers from 0 to 1, as .* got 0.5"),
        ({"policy": lambda seen: np.full(len(seen), 7), **ACTION}, "whole numbers from 0 to 1, as .* got 7"),
        ({"environment_kwargs": {"length": 3}}, "the policy has its environment"),
    ],
)
def test_wrong_usage_is_told(options, text, tmp_path):
    with pytest.raises(ConfigError, match=text):
        study(tmp_path / "s", **options)


# ---------------------------------------------------------------- the command


def test_the_command(tmp_path, capsys):
    words = ["critics", str(finished().path), "--forms", "ppo", "ppo-delta@1", "--lam", "1", "--budgets", "24"]
    words += ["--seeds", "2", "--states", "8", "--continuations", "2", "--gamma", "0.8", "--out", str(tmp_path / "s")]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "report: " in out and "ppo-delta@1" in out and "seed 1: 2 critics" in err
    assert (tmp_path / "s" / "report.html").exists()
    assert main([*words, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["agent"] for row in rows] == ["ppo", "ppo-delta@1"] and rows[0]["lam"] == 1.0
    assert main([*words, "--learning-rate", "0.5"]) == 2
    assert "learning_rates" in capsys.readouterr().err
    assert main(["critics", "nowhere"]) == 2
    assert "nowhere does not exist" in capsys.readouterr().err
