"""A recording as a video: the game beside the curves of its values, with a cursor that moves along them."""

import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image, ImageDraw

from tddelta.errors import MissingExtra
from tddelta.inspector.frames import from_observations
from tddelta.inspector.page import horizon_text
from tddelta.inspector.recordings import Recording
from tddelta.runs.files import storing

SIZE = (1280, 720)
"""Width and height in pixels."""

RATE = 30
"""Steps, and pictures, per second."""

_INK, _LINE, _DPI = "#24292f", "#d0d7de", 100
_RAMP = ((38, 70, 160), (20, 125, 165), (30, 145, 95), (150, 140, 20), (215, 110, 25), (185, 40, 70))


def write_video(recording: Recording, path: Path, *, rate: int = RATE) -> None:
    """Write an .mp4 (H.264), one picture per step.

    Args:
        recording: The game; of two critics the first is drawn.
        path: The file.
        rate: Steps per second.

    Raises:
        MissingExtra: The extra `video` is not installed.
        StorageError: The file cannot be written.
    """
    try:
        imageio_ffmpeg: Any = import_module("imageio_ffmpeg")  # has no types
    except ImportError as error:
        raise MissingExtra('a video needs imageio-ffmpeg: pip install "tddelta[video]"') from error
    temporary = path.with_name(f".{path.stem}.tmp.mp4")
    pixels = ("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{SIZE[0]}x{SIZE[1]}", "-r", str(rate), "-i", "-")
    coded = ("-an", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart", str(temporary))
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", *pixels, *coded]
    with storing(path):
        temporary.touch()  # Python's words about a folder that cannot be written, in place of ffmpeg's
        try:
            # not through imageio_ffmpeg: it forks, which JAX warns of
            done = _encoded(command, recording)
            if done.returncode:
                raise OSError(done.stderr.decode(errors="replace").strip() or f"ffmpeg ended with {done.returncode}")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _encoded(command: list[str], recording: Recording) -> "subprocess.CompletedProcess[bytes]":
    """Run the encoder over the pictures."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as encoder:
        assert encoder.stdin is not None
        assert encoder.stderr is not None
        try:
            for picture in pictures(recording):
                encoder.stdin.write(picture.tobytes())
            encoder.stdin.close()
        except BrokenPipeError:  # it gave up; what it says is the reason
            pass
        except BaseException:
            encoder.kill()
            raise
        said = encoder.stderr.read()
        encoder.stdin = None
    return subprocess.CompletedProcess(command, encoder.returncode, stderr=said)


def pictures(recording: Recording) -> Iterator[npt.NDArray[np.uint8]]:
    """The pictures of the video, (720, 1280, 3) bytes each."""
    critic = recording.critics[0]
    frames = recording.frames if recording.frames is not None else from_observations(recording.observations)
    base, charts, panel = _drawn(recording)
    known = critic.scales.horizons
    horizons = [horizon if np.isfinite(horizon) else 2 * max((1.0, *known[:-1])) for horizon in known]
    values = critic.values
    for t in range(len(recording)):
        image = base.copy()
        pen = ImageDraw.Draw(image)
        if frames is not None:
            picture, corner = _fitted(frames[t])
            image.paste(picture, corner)
        for axes in charts:
            (x, low), (_, high) = (_pixels(axes, float(t), float(end)) for end in axes.get_ylim())
            pen.line([(x, high), (x, low)], fill=_INK, width=2)
        points = [_pixels(panel, float(h), float(v)) for h, v in zip(horizons, values[t], strict=True)]
        pen.line(points, fill=_INK, width=2)
        for z, (x, y) in enumerate(points):
            pen.ellipse([x - 5, y - 5, x + 5, y + 5], fill=colour(z, len(points)))
        pen.text((20, 690), f"step {t:,}   V {values[t, -1]:.4g}", fill=_INK, font_size=20)
        yield np.asarray(image)


def colour(z: int, count: int) -> tuple[int, int, int]:
    """Colour of a scale, the page's."""
    at = z / (count - 1) * (len(_RAMP) - 1) if count > 1 else len(_RAMP) - 1
    low = min(int(at), len(_RAMP) - 2)
    mixed = [round(a + (b - a) * (at - low)) for a, b in zip(_RAMP[low], _RAMP[low + 1], strict=True)]
    return mixed[0], mixed[1], mixed[2]


def _drawn(recording: Recording) -> tuple[Image.Image, list[Any], Any]:
    """All that stands still, the axes over time, and the empty axes of the values against horizons."""
    critic, steps = recording.critics[0], np.arange(len(recording))
    figure = Figure(figsize=(SIZE[0] / _DPI, SIZE[1] / _DPI), dpi=_DPI, facecolor="white")
    canvas: Any = FigureCanvasAgg(figure)
    stack, values, rewards = (
        figure.add_axes((0.44, bottom, 0.54, height)) for bottom, height in ((0.68, 0.26), (0.32, 0.28), (0.08, 0.16))
    )
    panel = figure.add_axes((0.06, 0.13, 0.3, 0.2))
    colours = ["#{:02x}{:02x}{:02x}".format(*colour(z, len(critic.gammas))) for z in range(len(critic.gammas))]
    for sign in (1, -1):  # parts above and below 0 are stacked apart
        parts = np.where(sign * critic.deltas > 0, critic.deltas, 0)
        stack.stackplot(steps, parts.T, colors=colours, linewidth=0)
    for z, name in enumerate(colours):
        label = f"{horizon_text(critic.scales.horizons[z])} steps"
        values.plot(steps, critic.values[:, z], color=name, linewidth=2 if z == len(colours) - 1 else 1.2, label=label)
    values.legend(fontsize=8, ncols=min(len(colours), 6), loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    paid = np.flatnonzero(recording.rewards)
    rewards.vlines(paid, 0, recording.rewards[paid], color=_INK, linewidth=1.2)
    rewards.axhline(0, color=_INK, linewidth=0.6)
    for axes, title in ((stack, "parts W of the value, stacked"), (values, ""), (rewards, "rewards")):
        axes.set_xlim(0, max(len(recording) - 1, 1))
        axes.set_title(title, fontsize=10, loc="left", color=_INK)
    values.set_ylabel("V", color=_INK)
    finite = [h for h in critic.scales.horizons if np.isfinite(h)] or [1.0]
    low, high = min(0.0, float(critic.values.min())), max(0.0, float(critic.values.max()))
    panel.set_xscale("log")
    panel.set_xticks(finite, [f"{horizon:.3g}" for horizon in finite])
    panel.set_xticks([], minor=True)
    panel.set_xlim(finite[0] / 1.2, 1.2 * (finite[-1] if critic.gammas[-1] < 1 else 2 * finite[-1]))
    panel.set_ylim(low - 0.05 * (high - low or 1), high + 0.05 * (high - low or 1))
    panel.set_title("V against horizon in steps", fontsize=10, loc="left", color=_INK)
    for axes in (stack, values, rewards, panel):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_INK, labelsize=8)
        axes.grid(color=_LINE, linewidth=0.5)
        axes.set_axisbelow(True)
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())
    return image, [stack, values, rewards], panel


def _pixels(axes: Any, x: float, y: float) -> tuple[float, float]:
    across, up = axes.transData.transform((x, y))
    return float(across), SIZE[1] - float(up)


def _fitted(
    frame: npt.NDArray[np.uint8], box: tuple[int, int, int, int] = (40, 20, 460, 420)
) -> tuple[Image.Image, tuple[int, int]]:
    """A frame as large as fits into the box, and where its corner is."""
    height, width = frame.shape[:2]
    scale = min((box[2] - box[0]) / width, (box[3] - box[1]) / height)
    scale = int(scale) if scale >= 1 else scale  # whole pixels stay sharp
    size = max(1, round(width * scale)), max(1, round(height * scale))
    image = Image.fromarray(frame).resize(size, Image.Resampling.NEAREST)
    return image, ((box[0] + box[2] - size[0]) // 2, (box[1] + box[3] - size[1]) // 2)
