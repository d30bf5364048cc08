"""The video: what is drawn on its pictures, and a file that players read."""

import re
import subprocess

import numpy as np
import pytest

import tddelta as tdd
from inspect_data import game
from tddelta.errors import StorageError
from tddelta.inspector.frames import PLANES
from tddelta.inspector.recordings import Recording
from tddelta.inspector.video import colour, pictures

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


def test_one_scale_without_pictures_can_be_drawn():
    arrays = {name: array for name, array in game(3).items() if name in ("rewards", "terminated", "truncated")}
    picture = next(pictures(Recording.read(arrays | {"deltas": np.ones((3, 1)), "gammas": np.array([1.0])})))
    assert (picture == np.array(colour(0, 1))).all(axis=-1).any()


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
