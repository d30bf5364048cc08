"""Host environments by name and by factory, and what one step of theirs is: without a learner."""

import builtins
import copy
import dataclasses
import functools
import os
import signal
import sys

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import host_environments
from host_environments import Counting, Pushed, Rooms, Shifted, vectors
from tddelta import ConfigError, DataError, MissingExtra
from tddelta.deep import environments, host, rollout
from tddelta.deep.host import Vector, spawned_seeds

SAME, NEXT = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP


def opened(factory, count=1, seeds=None):
    return Vector(host.from_factory(factory, name="Plant"), seeds or spawned_seeds(0, "train", count))


def steps(vector, count, action=0):
    """Play `count` steps after a reset; return a list of `Moved`."""
    vector.reset()
    found = []
    for _ in range(count):
        vector.begin(np.full(len(vector._seeds), action))
        found.append(vector.finish())
    vector.close()
    return found


@pytest.mark.parametrize("mode", [SAME, NEXT])
def test_the_step_of_an_automatic_reset_is_told_from_the_others(mode):
    # Field cases B14, B15: every episode has its own three steps.
    found = steps(opened(vectors(mode)), 12)
    ends, resets = ([False, False, True], []) if mode is SAME else ([False, False, True, False], [3, 7, 11])
    assert [row for row, one in enumerate(found) if not one.played[0]] == resets
    for one, end in zip(found, ends * (12 // len(ends)), strict=True):
        assert one.terminated[0] == one.over[0] == end


@pytest.mark.parametrize("mode", [SAME, NEXT])
def test_the_true_successor_of_a_truncated_step_is_known(mode):
    found = steps(opened(vectors(mode, truncates=True)), 3)
    assert not found[0].finals and found[2].truncated[0]
    # The third step leads to clock 3; after the reset the clock is 0.
    assert found[2].finals[0][0] == 3
    assert found[2].observations[0, 0] == (0 if mode is SAME else 3)


@pytest.mark.parametrize("mode", [SAME, NEXT])
@pytest.mark.parametrize("copy", [True, False])
def test_what_a_step_gave_stays_whatever_comes_after(mode, copy):
    def make(num_envs):
        makers = [lambda: host_environments.Reusing(truncates=True)] * num_envs
        return gymnasium.vector.SyncVectorEnv(makers, copy=copy, autoreset_mode=mode)

    expected = steps(opened(vectors(mode, truncates=True), 2), 9)
    factories = [make] if mode is NEXT else [make, functools.partial(host_environments.Reusing, truncates=True)]
    for factory in factories:
        for one, other in zip(steps(opened(factory, 2), 9), expected, strict=True):
            np.testing.assert_array_equal(one.observations, other.observations)
            np.testing.assert_array_equal(one.played, other.played)
            assert one.finals.keys() == other.finals.keys()
            for place, final in one.finals.items():
                np.testing.assert_array_equal(final, other.finals[place])


class OfTheUser(gymnasium.vector.SyncVectorEnv):
    """A subclass, whose information Gymnasium merges for somebody."""


@pytest.mark.parametrize("wrap", [gymnasium.vector.VectorWrapper, lambda made: made])
def test_information_that_cannot_be_merged_is_left_out_of_a_vector_of_ones_own(wrap):
    maker = functools.partial(host_environments.Reusing, truncates=True)
    found = steps(opened(lambda num_envs: wrap(OfTheUser([maker] * num_envs, autoreset_mode=SAME)), 2), 3)
    assert found[2].finals[0][0] == 3


class Renamed(gymnasium.vector.SyncVectorEnv):
    """Tells the final observation as Gymnasium before 1.0 did, or not at all."""

    name: str | None = "final_observation"

    def step(self, actions):
        *rest, information = super().step(actions)
        if "final_obs" in information:
            final = information.pop("final_obs")
            if self.name:
                information[self.name] = final
        return *rest, information


class Silent(Renamed):
    name = None


@pytest.mark.parametrize("kind", [Renamed, Silent])
def test_a_final_observation_of_another_name_or_none(kind):
    # Field case B16.
    def make(num_envs):
        return kind([lambda: Counting(truncates=True)] * num_envs, autoreset_mode=SAME)

    if kind is Renamed:
        assert steps(opened(make), 3)[2].finals[0][0] == 3
    else:
        with pytest.raises(ConfigError, match=r"Plant: environment 0 was truncated, and .* no final_obs"):
            opened(make)


def test_shifted_actions_reach_the_environment_shifted():
    environment = host.from_factory(Shifted)
    assert environment.action_space.n == 3 and environment.first_action == -1
    np.testing.assert_array_equal(rollout.to_environment(environment, jnp.array([0, 1, 2])), [-1, 0, 1])


def test_boxes_clip_at_the_environment_only():
    environment = host.from_factory(Pushed)
    assert not environment.discrete and environment.action_space.shape == (2,)
    found = rollout.to_environment(environment, jnp.array([[0.5, -0.5], [0.05, 0.1]]))
    np.testing.assert_allclose(found, [[0.1, 0.0], [0.05, 0.1]], rtol=1e-5)


ANSWERS = [
    ("reset", np.zeros(2), r"reset must return 2 values, \(observation, info\); got an array of shape \(2,\)"),
    ("reset", (np.zeros(3), {}), r"reset must return observations of shape \(2,\); got shape \(3,\)"),
    ("reset", (None, {}), r"reset must return observations of Box.*; got None"),
    ("step", (np.zeros(2), 1.0, False, {}), "step must return 5 values, .*; got 4 values: .* for the old Gym API"),
    ("step", (np.zeros(2), 1.0, False, False), "step must return 5 values, .*; got 4 values: add them"),
    ("step", None, r"step must return 5 values, .*; got None \(NoneType\)"),
    (
        "step",
        (np.zeros(2), np.ones(1), False, False, {}),
        r"one number as reward; got an array of shape \(1,\): return f",
    ),
    ("step", (np.zeros(2), 1j, False, False, {}), r"one number as reward; got 1j \(complex\)"),
    ("step", (np.zeros(2), "1", False, False, {}), r"one number as reward; got '1' \(str\)"),
    ("step", (np.zeros(2), None, False, False, {}), "one number as reward; got None"),
    ("step", (np.zeros(2), np.nan, False, False, {}), "Plant: reward not finite in environment 0, step 0"),
    ("step", (np.full(2, np.inf), 1.0, False, False, {}), "Plant: observation not finite in environment 0, step 0"),
    ("step", (np.zeros(2), 1.0, None, False, {}), "True or False as terminated; got None"),
    ("step", (np.zeros(2), 1.0, False, "no", {}), "True or False as truncated; got 'no'"),
    ("step", (np.zeros(2), 1.0, False, False, None), "a dictionary as info; got None"),
    (
        "step",
        (np.zeros(2, complex), 1.0, False, False, {}),
        "observations of float64; got complex128 that does not fit",
    ),
]


@pytest.mark.parametrize(("method", "answer", "sentence"), ANSWERS)
def test_an_answer_of_the_wrong_form_is_told_before_anything_is_trained(method, answer, sentence):
    kind = type("Odd", (Counting,), {method: lambda self, *given, **named: answer})
    for made in (kind, lambda: gymnasium.wrappers.TimeLimit(kind(), 5), vectors(SAME, kind)):
        with pytest.raises(ConfigError, match=sentence):
            host.from_factory(made, name="Plant")
    assert all(one.closed for one in Counting.made if isinstance(one, kind))


@pytest.mark.parametrize("reward", [True, 2, np.float32(2), np.array(2.0), np.bool_(True)])
@pytest.mark.parametrize("flag", [0, np.bool_(False), np.array(False), np.int8(0)])
def test_numbers_and_flags_may_be_written_in_many_ways(reward, flag):
    answer = [0.5, 1], reward, flag, flag, {}
    kind = type("Odd", (Counting,), {"step": lambda self, action: answer})
    (moved,) = steps(opened(kind), 1)
    assert moved.rewards == [float(reward)] and not moved.over[0]
    np.testing.assert_array_equal(moved.observations, [[0.5, 1]])


@pytest.mark.parametrize(("pixel", "fits"), [(255, True), (256, False), (-1, False), (0.5, False)])
def test_whole_numbers_are_taken_for_bytes_where_they_fit(pixel, fits):
    space = gymnasium.spaces.Box(0, 255, (2,), np.uint8)
    kind = type("Bytes", (Counting,), {"observation_space": space, "seen": lambda self: np.array([0, pixel])})
    if fits:
        np.testing.assert_array_equal(steps(opened(kind), 1)[0].observations, [[0, 255]])
    else:
        with pytest.raises(ConfigError, match=r"Plant: reset must return observations of uint8; got .* does not fit"):
            opened(kind)


class OldReset(Counting):
    def reset(self):
        return super().reset()


class ShortVectors(gymnasium.vector.SyncVectorEnv):
    """Gives `answer` in place of what the step gave at `place`."""

    place, answer = 1, np.ones((1, 1))

    def step(self, actions):
        found = list(super().step(actions))
        found[self.place] = self.answer
        return tuple(found)


@pytest.mark.parametrize(
    ("place", "answer", "sentence"),
    [
        (0, np.zeros(2), r"Plant: step must return observations of shape \(1, 2\); got shape \(2,\)"),
        (
            1,
            np.ones((1, 1)),
            r"step must return rewards of shape \(1,\), numbers; got float64 of shape \(1, 1\)",
        ),
        (2, np.array(["no"]), r"Plant: step must return terminated of shape \(1,\), True or False; got <U2"),
    ],
)
def test_vectors_of_the_wrong_form_are_refused(place, answer, sentence):
    kind = type("Odd", (ShortVectors,), {"place": place, "answer": answer})
    with pytest.raises(ConfigError, match=sentence):
        opened(lambda num_envs: kind([Counting] * num_envs, autoreset_mode=SAME))


class Planning(Counting):
    """Tries every action on a copy of itself first."""

    copied = False

    def step(self, action):
        if not self.copied:
            other = copy.deepcopy(self)
            other.copied = True
            assert other.step(action)[0][0] == self.clock + 1
        return super().step(action)


def test_an_environment_may_copy_itself():
    assert [one.observations[0, 0] for one in steps(opened(Planning), 2)] == [1, 2]


def test_a_factory_makes_a_new_environment_every_time():
    one = Counting()
    with pytest.raises(ConfigError, match="Plant: the factory must make a new environment every time"):
        opened(lambda: one, 2)


def test_trying_an_environment_moves_no_random_numbers_on():
    class Drawing(Counting):
        def seen(self):
            return np.array([np.random.get_bit_generator().random_raw() % 7, 0])

    state = np.random.get_bit_generator().state
    host.from_factory(Drawing)
    np.testing.assert_equal(np.random.get_bit_generator().state, state)


def test_actions_stay_within_bounds_that_float32_rounds():
    space = gymnasium.spaces.Box(-0.7, 0.7, (1,), np.float64)
    kind = type("Fine", (Counting,), {"action_space": space})
    with opened(kind) as vector:
        vector.reset()
        vector.begin(np.float32([[0.7]]))  # a little more than 0.7
        assert vector.finish().rewards[0] == 1


class Buttons(Counting):
    action_space = gymnasium.spaces.MultiDiscrete([2, 3])


class Unshown(Counting):
    observation_space = gymnasium.spaces.Text(5)


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        (OldReset, r"OldReset: reset must take the arguments seed and options .*'seed'"),
        (
            vectors(AutoresetMode.DISABLED),
            r"environment make: metadata.*must be .*SAME_STEP or NEXT_STEP; got .*DISABLED",
        ),
        (Buttons, "environment Buttons: actions must be Discrete or a Box of real numbers; got MultiDiscrete"),
        (Rooms, "environment Rooms: observations must be one array, a Box; got Dict.*FlattenObservation"),
        (Unshown, "environment Unshown: observations must be one array, a Box; got Text"),
        (
            type("Empty", (Counting,), {"observation_space": gymnasium.spaces.Box(0, 1, (0,))}),
            "environment Empty: observations must hold at least one number; got Box",
        ),
        (
            type("Spaceless", (Counting,), {"action_space": None}),
            "environment Spaceless must have a space of gymnasium.spaces as action_space; got None",
        ),
        (lambda: None, "the factory must make a Env of Gymnasium; got NoneType"),
        (
            lambda: Counting,
            "the factory must make a Env of Gymnasium; got the class Counting: call it",
        ),
        (lambda: 1 / 0, "cannot be made, ZeroDivisionError: division by zero .*test_host_stepping.py, line"),
        (3, "pass a function that makes it; got an object, int"),
        (dict, "environment dict: the factory must make a Env of Gymnasium; got dict"),
    ],
)
def test_what_the_learner_cannot_use_is_refused_in_one_line(factory, sentence):
    if factory is dict:
        factory = type("dict", (), {"close": lambda self: None})
    with pytest.raises(ConfigError, match=sentence):
        host.from_factory(factory)


def test_a_factory_that_makes_another_number_is_refused():
    with pytest.raises(ConfigError, match="environment Plant: the factory must make 3 environments here; got 1"):
        opened(lambda num_envs: vectors(SAME)(1), 3)


@pytest.mark.parametrize("made", [Counting(), vectors(SAME)(1)])
def test_objects_of_gymnasium_are_refused(made):
    with pytest.raises(ConfigError, match=r"is an object of Gymnasium: pass host.from_factory\(function\)"):
        environments.resolve(made)


def test_seeds_are_spawned():
    # Field case B49.
    first = np.concatenate([opened(vectors(SAME), 4).reset()[:, 1] for _ in range(2)])
    assert len(set(first)) == 4  # four environments differ, and the second time they are the same
    zero, one = (spawned_seeds(seed, "train", 4) for seed in (0, 1))
    assert not set(zero) & set(one)
    assert not set(zero) & set(spawned_seeds(0, "evaluate", 4)) | (set(zero) & set(spawned_seeds(0, "train", 4, 7)))
    assert all(0 <= seed < 2**31 for seed in zero)


def test_an_environment_that_raises_is_named_with_its_own_message():
    sentence = r"Plant, in step after 9 steps .*, raised StuckError: the valve is stuck \(.*line \d+, in step\)$"
    with pytest.raises(DataError, match=sentence):
        steps(opened(vectors(SAME, host_environments.Broken)), 12)


def test_a_registered_environment_and_its_options():
    environment = environments.resolve("gym:host_environments:HostCounting-v0", {"length": 5})
    assert environment.time_limit == 50 and environment.observation_shape == (2,)
    assert environment.name == "gym:host_environments:HostCounting-v0"
    assert environment.to_dict() == {"id": "HostCounting-v0"}
    assert environments.resolve("gym:HostCounting-v0", {"length": 5}) is not environment
    assert [bool(one.over[0]) for one in steps(Vector(environment, [1]), 5)] == [False, False, False, False, True]


def test_frames_are_stacked():
    environment = environments.resolve("gym:CartPole-v1", {"frame_stack": 3})
    assert environment.observation_shape == (3, 4) and environment.to_dict() == {"id": "CartPole-v1", "frame_stack": 3}
    vector = Vector(environment, [1, 2])
    first = vector.reset()
    vector.begin(np.array([0, 1]))
    second = vector.finish().observations
    vector.close()
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first[:, 0], first[:, 2])
    np.testing.assert_array_equal(second[:, :2], first[:, 1:])


def test_other_observations_are_flattened():
    environment = environments.resolve("gym:HostRooms-v0")
    assert environment.observation_shape == (5,) and environment.to_dict()["flattened"] is True
    vector = Vector(environment, [1])
    np.testing.assert_array_equal(vector.reset(), [[0, 1, 0, 0.25, 0.5]])
    vector.close()


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("gym:CartPol-v1", {}, "unknown Gymnasium environment 'CartPol-v1': did you mean CartPole-v1"),
        ("gym:CartPole-v7", {}, "unknown Gymnasium environment 'CartPole-v7': did you mean CartPole-v"),
        ("gym:no_such_module:X-v0", {}, "no module 'no_such_module' for 'gym:no_such_module:X-v0'"),
        (
            "gym:CartPole-v1",
            {"gravitation": 5},
            "gym:CartPole-v1 cannot be made, TypeError: .*gravitation.*: environment_k",
        ),
        ("gym:CartPole-v1", {"frame_stack": 0}, "frame_stack must be a whole number of at least 1; got 0"),
        ("gym:CartPole-v1", {"worker_processes": 2}, "worker_processes must be True or False; got 2"),
        ("gym:ALE/Pong-v5", {}, "would play without the preprocessing of Atari; name it ALE/Pong-v5, without gym:"),
    ],
)
def test_names_and_options_that_are_wrong(name, options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        environments.resolve(name, options)


@pytest.mark.parametrize(
    ("name", "module", "sentence"),
    [
        ("gym:CartPole-v1", "gymnasium", r'needs Gymnasium: pip install "tddelta\[gym\]"'),
        ("Asterix", "ale_py.vector_env", r'Atari games need ale-py: pip install "tddelta\[atari\]"'),
    ],
)
def test_a_missing_extra_says_how_to_install_it(name, module, sentence, monkeypatch):
    # Field case B57.
    environments._resolve_once.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(builtins, "__import__", builtins.__import__)
    with pytest.raises(MissingExtra, match=sentence):
        environments.resolve(name)


def test_only_gymnasiums_own_are_trusted_by_name():
    assert host.is_gymnasiums_own("gym:CartPole-v1")
    for name in ("gym:HostCounting-v0", "gym:host_environments:HostCounting-v0", "CartPole-v1", "gym:Nothing-v0"):
        assert not host.is_gymnasiums_own(name)


@pytest.mark.parametrize(
    ("name", "options", "over"),
    [
        ("host_environments:Counting", {"length": 2}, [False, True, False, True]),
        ("host_environments:vectors_of_counting", {"length": 2}, [False, True, False, False, True]),
        ("gym:host_environments:HostVectors-v0", {"length": 2}, [False, True, False, False, True]),
    ],
)
def test_functions_that_make_them_can_be_named(name, options, over):
    environment = environments.resolve(name, options)
    assert environment.name == name and environment.observation_shape == (2,)
    found = steps(Vector(environment, [1, 2]), len(over))
    assert [bool(one.over[0]) for one in found] == over
    assert all(one.played.all() for one in found) is (name == "host_environments:Counting")


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("host_environments:Counting", {"longth": 2}, "one of 'longth'"),
        ("host_environments:vectors_of_counting", {"longth": 2}, "cannot be made .*'longth'.*what its function takes"),
        ("host_environments:vectors", {}, "cannot be made .*'mode'.*what its function takes"),
        ("host_environments:TINY", {}, "must be a function or a class that makes one; got an object, dict"),
        ("gym:HostVectors-v0", {"frame_stack": 4}, "is a vector environment of its own: drop frame_stack and worker_"),
        (host_environments.vectors_of_counting, {}, "is a function: pass host.from_factory"),
    ],
)
def test_functions_that_cannot_be_used_are_refused(name, options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        environments.resolve(name, options)


def test_where_a_life_is_lost_the_game_goes_on():
    # Field cases B40, B44: three lives of two steps.
    plain = host.from_factory(host_environments.Lives)
    found = steps(Vector(dataclasses.replace(plain, lives=True), [1]), 12)
    assert [bool(one.terminated[0]) for one in found] == [False, True] * 6
    assert [bool(one.over[0]) for one in found] == ([False] * 5 + [True]) * 2
    assert [float(one.rewards[0]) for one in found[:6]] == [0, 7, -4, 0, 2, 100]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "HostBroken-v0",
            r"in step after 9 steps of 2 .*, raised StuckError: the valve is stuck \(.*ments.py, line \d+, in step\)$",
        ),
        ("HostKilled-v0", "a worker process ended in step after 9 steps of 2 environments, as where memory runs out"),
    ],
)
def test_what_a_worker_process_raises_arrives_with_its_place(name, sentence):
    processes = environments.resolve(f"gym:host_environments:{name}", {"worker_processes": True, "length": 20})
    vector = Vector(processes, [3, 4])
    workers = list(vector._made.processes)
    with pytest.raises(DataError, match=sentence):
        steps(vector, 12)
    vector.close()
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_leaves_it_to_the_owner_when_to_end(number):
    vector = Vector(environments.resolve("gym:CartPole-v1", {"worker_processes": True}), [3, 4])
    workers = list(vector._made.processes)
    vector.reset()
    for worker in workers:
        os.kill(worker.pid, number)
    vector.begin(np.array([0, 1]))
    assert vector.finish().played.all()
    vector.close()
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.slow
def test_worker_processes_step_the_same():
    inside, alone = (
        environments.resolve("gym:CartPole-v1", {"worker_processes": processes}) for processes in (True, False)
    )
    assert inside.overlaps and not alone.overlaps
    found = [steps(Vector(environment, [3, 4]), 30, action=1) for environment in (inside, alone)]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one.observations, other.observations)
        np.testing.assert_array_equal(one.over, other.over)


def test_a_script_that_would_run_again_in_every_process_is_told_so(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("import tddelta\n", encoding="utf-8")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    sentence = r"worker_processes would run .*script\.py again.*below the line if __name__ == \"__main__\":"
    with pytest.raises(ConfigError, match=sentence) as caught:
        environments.resolve("gym:CartPole-v1", {"worker_processes": True, "max_episode_steps": 123})
    assert isinstance(caught.value, SystemExit) and caught.value.code == str(caught.value)  # the text and no more
    script.write_text("if __name__ == '__main__': pass\n", encoding="utf-8")
    environments.resolve("gym:CartPole-v1", {"worker_processes": True})
