"""Recordings: read, checked, written; pictures and what is packed of them."""

import base64
import io
from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image

import tddelta as tdd
from inspect_data import game
from tddelta.errors import ConfigError, DataError, ShapeError, StorageError
from tddelta.inspector import PLANES, Critic, Recording, from_observations, page
from tddelta.inspector.page import html, packed_pictures, table


def unpacked(pack):
    """Frames as the page shows them."""
    files = [Image.open(io.BytesIO(base64.b64decode(sheet))) for sheet in pack["sheets"]]
    assert all(file.mode == "P" for file in files)
    wide = np.concatenate([np.asarray(file.convert("RGB")) for file in files], axis=1)
    return wide.reshape(pack["height"], -1, pack["width"], 3).swapaxes(0, 1)


def test_a_recording_comes_back_from_its_file(tmp_path):
    first = Recording.read(game())
    critic = Critic("another", np.array([0.5, 0.9]), np.zeros((len(first), 2), np.float32))
    both = first.beside(critic)
    both.save(tmp_path / "game.npz")
    again = Recording.read(tmp_path / "game.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["game.npz"]
    assert [each.name for each in again.critics] == ["ppo-delta, seed 0", "another"]
    np.testing.assert_equal(asdict(again), asdict(both))
    assert (again.environment, again.learner_rewards, again.no_frames) == ("Breakout-MinAtar", None, "")


TWO = {"other_deltas": np.zeros((60, 2)), "other_gammas": np.array([0.1, 0.2])}


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"rewards": None}, DataError, "lacks rewards: a recording has rewards, deltas, gammas"),
        ({"deltas": None, "gammas": None}, DataError, "lacks deltas, gammas"),
        ({"values": np.zeros(3)}, DataError, "has values, no field of a recording"),
        ({"rewards": np.zeros((60, 1))}, ShapeError, r"rewards must be \(T,\)"),
        ({"rewards": np.zeros(0)}, ShapeError, r"rewards must be \(T,\)"),
        ({"deltas": np.zeros((60, 5))}, ShapeError, r"\(T, Z\) with T = 60 steps and Z = 6 discounts; got \(60, 5\)"),
        ({"deltas": np.full((60, 6), np.nan)}, DataError, r"deltas must be finite; got nan at \(0, 0\)"),
        ({"rewards": np.array([0.0, np.inf] * 30)}, DataError, r"rewards must be finite; got inf at \(1,\)"),
        ({"rewards": np.array(["a"] * 60)}, DataError, "rewards must hold numbers"),
        ({"gammas": np.linspace(0.9, 0.1, 6)}, ConfigError, "^the recording: gammas must be strictly increasing"),
        (TWO | {"other_gammas": np.array([0.9, 0.1])}, ConfigError, "^the recording: other_gammas must be strictly"),
        ({"deltas": [[1.0], []]}, ShapeError, r"deltas must be an array, all rows of one length; got \[\[1.0\], \["),
        ({"terminated": np.zeros(60)}, DataError, "terminated must be boolean; got float64"),
        ({"truncated": np.zeros(59, bool)}, ShapeError, r"truncated must be \(60,\), as rewards are; got \(59,\)"),
        ({"frames": np.zeros((60, 8, 8))}, DataError, "frames must be bytes"),
        ({"frames": np.zeros((60, 8, 8, 4), np.uint8)}, ShapeError, r"frames must be \(60, H, W\)"),
        ({"frames": np.zeros((59, 8, 8, 3), np.uint8)}, ShapeError, r"got \(59, 8, 8, 3\)"),
        ({"lives": np.zeros(3)}, ShapeError, r"lives must be \(60,\), as rewards are; got \(3,\)"),
        ({"learner_rewards": np.full(60, np.nan)}, DataError, "learner_rewards must be finite"),
        ({"other_deltas": np.zeros((60, 2))}, DataError, "a second critic needs both"),
        (TWO | {"other_deltas": np.zeros((6, 2))}, ShapeError, "other_deltas must be"),
    ],
)
def test_a_bad_recording_is_told_what_is_wrong(change, kind, words):
    arrays = {name: array for name, array in (game(60) | change).items() if array is not None}
    with pytest.raises(kind, match=words):
        Recording.read(arrays)


@pytest.mark.parametrize("given", [None, [1.0, 2.0], 3])
def test_what_is_no_recording_is_told_the_forms_of_one(given):
    with pytest.raises(ConfigError, match=r"must be the path of an \.npz file, a dict of its arrays by name or a Rec"):
        tdd.inspect(given)


def test_tensors_that_need_gradients_are_accepted():
    torch = pytest.importorskip("torch", reason="needs torch")
    arrays = game(60)
    found = Recording.read(arrays | {"deltas": torch.tensor(arrays["deltas"], requires_grad=True)})
    np.testing.assert_array_equal(found.critics[0].deltas, arrays["deltas"])


def test_a_page_that_cannot_be_written_is_no_run_to_go_on_with(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "taken.html").mkdir()
    for place in ("file/page.html", "taken.html"):
        with pytest.raises(StorageError, match=r"html cannot be written \(.*\): .*, or name another place$"):
            tdd.inspect(game(30), tmp_path / place)
    with pytest.raises(StorageError, match=r"or name another place$"):
        Recording.read(game(30)).save(tmp_path / "none" / "game.npz")


def test_a_file_that_is_none_is_refused_and_nothing_in_it_is_executed(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        tdd.inspect(tmp_path / "none.npz")
    with pytest.raises(ConfigError, match="is a folder, no recording: tddelta inspect"):
        tdd.inspect(tmp_path)
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(DataError, match="no archive of plain arrays"):
        tdd.inspect(tmp_path / "text.npz")
    np.savez(tmp_path / "pickle.npz", rewards=np.array([print], object))
    with pytest.raises(DataError, match="no archive of plain arrays"):
        tdd.inspect(tmp_path / "pickle.npz")


def test_returns_that_followed_are_known_up_to_a_cut_only():
    arrays = game(60)
    arrays["terminated"][:], arrays["truncated"][:] = False, False
    arrays["terminated"][19] = True
    recording = Recording.read(arrays)
    found, gammas = recording.realised(recording.critics[0]), arrays["gammas"]
    for t in (0, 7, 19):
        sums = [sum(gamma**i * arrays["rewards"][t + i] for i in range(20 - t)) for gamma in gammas]
        np.testing.assert_allclose(found[t], sums)
    assert np.isnan(found[-1]).all()
    assert np.isfinite(found[25, 0])  # 35 steps of γ = 0.68 are enough
    assert np.isnan(found[25, -1])


def test_what_followed_counts_rewards_as_the_critic_learned_them(tmp_path):
    rewards, plain = game()["rewards"] * 30, Recording.read(game())
    more = {"rewards": rewards, "learner_rewards": np.sign(rewards), "no_frames": np.array("nothing draws it")}
    clipped = Recording.read(game() | more)
    np.testing.assert_allclose(clipped.realised(clipped.critics[0]), plain.realised(plain.critics[0]))
    clipped.save(tmp_path / "game.npz")
    again = Recording.read(tmp_path / "game.npz")
    np.testing.assert_equal(asdict(again), asdict(clipped))
    assert "as the critic learned them" in html(again)
    assert "as the critic learned them" not in html(plain)


def test_planes_become_colours_and_images_stay():
    planes = np.zeros((2, 10, 10, 4), np.uint8)
    planes[0, 2, 3, 1] = planes[1, 4, 4, [0, 3]] = 1
    frames = from_observations(planes)
    assert tuple(frames[0, 2, 3]) == PLANES[1]
    assert tuple(frames[1, 4, 4]) == PLANES[3]
    assert frames.sum() == sum(PLANES[1]) + sum(PLANES[3])
    images = np.random.default_rng(0).integers(0, 255, (3, 20, 30, 3), np.uint8)
    np.testing.assert_array_equal(from_observations(images), images)
    stack = np.random.default_rng(0).integers(0, 255, (3, 84, 84, 4), np.uint8)
    np.testing.assert_array_equal(from_observations(stack)[..., 0], stack[..., 3])
    board = np.zeros((2, 10, 5), np.float32)
    assert from_observations(board).shape == (2, 10, 5, 3)
    for vector in (np.zeros((5, 4)), None, np.full((5, 8, 8, 2), 0.5)):
        assert from_observations(vector) is None


def test_up_to_256_colours_are_packed_without_loss(monkeypatch):
    monkeypatch.setattr(page, "_SHEET", 40)
    rng = np.random.default_rng(1)
    frames = rng.integers(0, 256, (256, 3), np.uint8)[rng.integers(0, 256, (5, 21, 15))]
    pack = packed_pictures(frames)
    assert not pack["rounded"] and pack["columns"] == 2 and len(pack["sheets"]) == 3
    np.testing.assert_array_equal(unpacked(pack), frames)


def test_more_colours_are_rounded_and_large_pictures_made_smaller():
    ramp = np.linspace(0, 255, 700).astype(np.uint8)
    many = np.stack(np.broadcast_arrays(ramp[:, None], ramp[None, :40], np.uint8(9)), axis=-1)[None]
    pack = packed_pictures(many)
    assert pack["rounded"] and pack["reduced"] == 3
    found = unpacked(pack)
    assert found.shape == (1, 234, 14, 3)
    assert np.abs(found.astype(int) - many[:, ::3, ::3]).max() < 16


def test_pictures_that_cannot_be_compressed_are_made_smaller_until_the_page_is(monkeypatch):
    noise = np.random.default_rng(3).integers(0, 256, (40, 60, 80), np.uint8)
    grey = np.repeat(noise[..., None], 3, axis=-1)
    assert packed_pictures(grey)["reduced"] == 1
    monkeypatch.setattr(page, "MOST_BYTES", 100_000)
    pack = packed_pictures(grey)
    assert pack["reduced"] == 2 and sum(map(len, pack["sheets"])) <= 100_000
    np.testing.assert_array_equal(unpacked(pack), grey[:, ::2, ::2])


def test_the_page_is_one_file_that_escapes_what_it_shows(tmp_path):
    arrays = game(30) | {"name": np.array("</script><b>x"), "environment": np.array("<i>&")}
    text = tdd.inspect(arrays, tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    assert "</script><b>" not in text
    assert "<i>" not in text
    assert "https:" not in text and "http:" not in text
    assert text == html(Recording.read(arrays))
    with pytest.raises(ConfigError, match=r"steps 0 … 29; got 30"):
        tdd.inspect(arrays, tmp_path, step=30)
    assert tdd.inspect(arrays, tmp_path).name == "inspect.html"


def test_one_moment_as_a_table():
    arrays = game(60)
    ((heads, rows, sentence),) = table(Recording.read(arrays), 12)
    assert heads == ["part", "horizon", "γ", "W", "share", "V", "came"]
    deltas = arrays["deltas"][12]
    for z, row in enumerate(rows):
        assert float(row[3]) == pytest.approx(deltas[z], rel=1e-3)
        assert float(row[5]) == pytest.approx(deltas[: z + 1].sum(), rel=1e-3)
    assert f"V over 100 steps is {deltas.sum():.4g}" in sentence
    assert f"its largest part is W_{np.abs(deltas).argmax()}" in sentence
    with pytest.raises(ConfigError, match="steps 0 … 59"):
        table(Recording.read(arrays), -1)
