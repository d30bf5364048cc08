"""The video: what is drawn on its pictures, and a file that players read."""

import re
import subprocess

import matplotlib
import numpy as np
import pytest

import tddelta as tdd
from inspect_data import game
from tddelta.errors import StorageError
from tddelta.inspector import PLANES, Critic, Recording
from tddelta.inspector.video import _drawn, _pixels, _said, colour, pictures

imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="imageio-ffmpeg is not installed")


def test_pictures_show_the_game_and_the_cursor():
    recording = Recording.read(game(12))
    drawn = list(pictures(recording))
    assert len(drawn) == 12
    assert all(picture.shape == (720, 1280, 3) for picture in drawn)
    # the paddle of step 4, in the last row and fifth column of a picture of 400 × 400 pixels
    assert tuple(drawn[4][20 + 9 * 40 + 20, 50 + 4 * 40 + 20]) == PLANES[0]
    # what changes from step to step is the game, the cursor, the panel and the line of text
    moved = (drawn[4] != drawn[5]).any(axis=-1)
    assert moved[60:200, 560:1260].any()
    assert not moved[:, 490:555].any()


def test_both_critics_of_a_comparison_are_drawn():
    other = np.random.default_rng(9).normal(size=(12, 2)).cumsum(axis=0)
    alone = Recording.read(game(12))
    both = alone.beside(Critic("another", np.array([0.5, 1.0]), other))
    drawn = list(pictures(both))
    assert [picture.shape for picture in drawn] == [(720, 1280, 3)] * 12
    # its charts lie between those of the first critic and the rewards, in its own colours
    assert (drawn[4][300:420, 560:1260] == np.array(colour(0, 2))).all(axis=-1).any()
    assert (drawn[4][300:420, 560:1260] == np.array(colour(1, 2))).all(axis=-1).any()
    _, charts, panel = _drawn(both)
    assert len(charts) == 5
    assert charts[1].get_ylim() == charts[3].get_ylim()
    assert charts[0].get_ylim() == charts[2].get_ylim()
    np.testing.assert_array_equal([line.get_ydata() for line in charts[3].lines], both.critics[1].values.T)
    # its points are squares, first at horizons of 2 steps and of all that is left: twice the longest finite one
    for z, horizon in enumerate((2.0, 200.0)):
        x, y = _pixels(panel, horizon, float(both.critics[1].values[4, z]))
        corner = drawn[4][round(y) - 4, round(x) - 4]
        assert tuple(corner) == colour(z, 2)
    said = _said(both, [critic.values for critic in both.critics], 4)
    assert said[0] == "step 4"
    for line, critic in zip(said[1:], both.critics, strict=True):
        assert line == f"{critic.name}   V {critic.values[4, -1]:.4g}"


def test_one_scale_without_pictures_can_be_drawn():
    arrays = {name: array for name, array in game(3).items() if name in ("rewards", "terminated", "truncated")}
    picture = next(pictures(Recording.read(arrays | {"deltas": np.ones((3, 1)), "gammas": np.array([1.0])})))
    assert (picture == np.array(colour(0, 1))).all(axis=-1).any()


def test_pictures_do_not_depend_on_settings_of_matplotlib():
    recording = Recording.read(game(3))
    expected = next(pictures(recording))
    with matplotlib.rc_context({"font.size": 22, "lines.linewidth": 9, "axes.grid": True}):
        np.testing.assert_array_equal(next(pictures(recording)), expected)


@pytest.mark.slow
def test_the_file_has_a_picture_for_every_step(tmp_path):
    tdd.inspect(game(45), tmp_path, video=tmp_path / "game.mp4")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["game.mp4", "inspect.html"]
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(tmp_path / "game.mp4"), "-map", "0:v", "-f", "null", "-"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "Video: h264" in said
    assert "1280x720" in said
    assert re.findall(r"frame=\s*(\d+)", said)[-1] == "45"


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"none/game.mp4 cannot be written \(No such file or directory\)"):
        tdd.inspect(game(3), tmp_path, video=tmp_path / "none" / "game.mp4")
