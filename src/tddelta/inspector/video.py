"""A recording as a video: the game beside the curves of its values, with a cursor that moves along them."""

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from tddelta._matplotlib import Figure, FigureCanvasAgg, own_style
from tddelta.errors import MissingExtra
from tddelta.inspector import Recording
from tddelta.runs.files import ELSEWHERE, storing
from tddelta.timescales import number_text

SIZE = (1280, 720)
"""Width and height in pixels."""

RATE = 30
"""Steps, and pictures, per second."""

_INK, _SOFT, _LINE, _DPI = "#24292f", "#8c959f", "#d0d7de", 100
_ROWS = {  # bottom and height of the charts over time, by number of critics: W and V of each, then the rewards
    1: ((0.68, 0.26), (0.32, 0.28), (0.08, 0.16)),
    2: ((0.83, 0.13), (0.62, 0.13), (0.42, 0.13), (0.21, 0.13), (0.06, 0.09)),
}
_RAMP = ((38, 70, 160), (20, 125, 165), (30, 145, 95), (150, 140, 20), (215, 110, 25), (185, 40, 70))


def write_video(recording: Recording, path: Path, *, rate: int = RATE) -> None:
    """Write an .mp4 (H.264), one picture per step.

    Args:
        recording: The game, and one critic or two.
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
    with storing(path, ELSEWHERE):
        temporary.touch()  # Python's words about a folder that cannot be written, in place of ffmpeg's
        try:
            # not through imageio_ffmpeg: it forks, which JAX warns of
            with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as encoder:
                assert encoder.stdin is not None
                with suppress(BrokenPipeError):  # it gave up; what it says is the reason
                    for picture in pictures(recording):
                        encoder.stdin.write(picture.tobytes())
                _, said = encoder.communicate()
            if encoder.returncode:
                raise OSError(said.decode(errors="replace").strip() or f"ffmpeg ended with {encoder.returncode}")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def pictures(recording: Recording) -> Iterator[npt.NDArray[np.uint8]]:
    """The pictures of the video, (720, 1280, 3) bytes each."""
    frames = recording.pictures
    base, charts, panel = _drawn(recording)
    beyond = _beyond(recording)
    places = [[h if np.isfinite(h) else beyond for h in critic.scales.horizons] for critic in recording.critics]
    values = [critic.values for critic in recording.critics]
    for t in range(len(recording)):
        image = base.copy()
        pen = ImageDraw.Draw(image)
        if frames is not None:
            picture, corner = _fitted(frames[t])
            image.paste(picture, corner)
        else:
            pen.text((76, 200), "no pictures of the game", fill=_SOFT, font_size=16)
        for axes in charts:
            (x, low), (_, high) = (_pixels(axes, float(t), float(end)) for end in axes.get_ylim())
            pen.line([(x, high), (x, low)], fill=_INK, width=2)
        for c, (horizons, believed) in reversed(list(enumerate(zip(places, values, strict=True)))):
            points = [_pixels(panel, float(h), float(v)) for h, v in zip(horizons, believed[t], strict=True)]
            pen.line(points, fill=_SOFT if c else _INK, width=2)
            for z, (x, y) in enumerate(points):
                mark = pen.rectangle if c else pen.ellipse  # as on the page
                mark([x - 5, y - 5, x + 5, y + 5], fill=colour(z, len(points)))
        for line, text in enumerate(_said(recording, values, t)):
            pen.text((76, 660 + 20 * line), text, fill=_INK, font_size=16)
        yield np.asarray(image)


def _said(recording: Recording, values: list[npt.NDArray[Any]], t: int) -> list[str]:
    """Step and V; with the names where there are two critics."""
    if len(values) == 1:
        return [f"step {t:,}   V {values[0][t, -1]:.4g}"]
    named = zip(recording.critics, values, strict=True)
    return [f"step {t:,}", *(f"{_short(critic.name)}   V {v[t, -1]:.4g}" for critic, v in named)]


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:39]}…"


def _beyond(recording: Recording) -> float:
    """Place of an infinite horizon: twice the longest finite one."""
    finite = [h for critic in recording.critics for h in critic.scales.horizons if np.isfinite(h)]
    return 2 * max([1.0, *finite])


def colour(z: int, count: int) -> tuple[int, int, int]:
    """Colour of a scale, the page's."""
    at = z / (count - 1) * (len(_RAMP) - 1) if count > 1 else len(_RAMP) - 1
    red, green, blue = (round(np.interp(at, range(len(_RAMP)), part)) for part in zip(*_RAMP, strict=True))
    return red, green, blue


@own_style()
def _drawn(recording: Recording) -> tuple[Image.Image, list[Any], Any]:
    """All that stands still, the axes over time, and the empty axes of the values against horizons."""
    critics, steps = recording.critics, np.arange(len(recording))
    figure = Figure(figsize=(SIZE[0] / _DPI, SIZE[1] / _DPI), dpi=_DPI, facecolor="white")
    canvas: Any = FigureCanvasAgg(figure)
    rows = [figure.add_axes((0.44, bottom, 0.54, height)) for bottom, height in _ROWS[len(critics)]]
    stacks, lines, rewards = rows[:-1:2], rows[1:-1:2], rows[-1]
    panel = figure.add_axes((0.06, 0.13, 0.3, 0.2))
    for critic, stack, values in zip(critics, stacks, lines, strict=True):
        count = len(critic.gammas)
        colours = ["#{:02x}{:02x}{:02x}".format(*colour(z, count)) for z in range(count)]
        of_whom = f": {_short(critic.name)}" if len(critics) > 1 else ""
        for sign in (1, -1):  # parts above and below 0 are stacked apart
            parts = np.where(sign * critic.deltas > 0, critic.deltas, 0)
            stack.stackplot(steps, parts.T, colors=colours, linewidth=0)
        for z, name in enumerate(colours):
            label, width = f"{number_text(critic.scales.horizons[z])} steps", 2 if z == count - 1 else 1.2
            values.plot(steps, critic.values[:, z], color=name, linewidth=width, label=label)
        values.legend(fontsize=8, ncols=min(count, 6), loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
        values.set_ylabel("V", color=_INK)
        stack.set_title(f"parts W of the value, stacked{of_whom}", fontsize=10, loc="left", color=_INK)
    paid = np.flatnonzero(recording.rewards)
    rewards.vlines(paid, 0, recording.rewards[paid], color=_INK, linewidth=1.2)
    rewards.axhline(0, color=_INK, linewidth=0.6)
    rewards.set_title("rewards", fontsize=10, loc="left", color=_INK)
    for axes in rows:
        axes.set_xlim(0, max(len(recording) - 1, 1))
    for alike in (stacks, lines):  # one scale for both critics, so that they can be compared
        ends = [end for axes in alike for end in axes.get_ylim()]
        for axes in alike:
            axes.set_ylim(min(ends), max(ends))
    horizons = sorted({h for critic in critics for h in critic.scales.horizons if np.isfinite(h)}) or [1.0]
    endless = any(critic.gammas[-1] == 1 for critic in critics)
    low = min(0.0, *(float(critic.values.min()) for critic in critics))
    high = max(0.0, *(float(critic.values.max()) for critic in critics))
    panel.set_xscale("log")
    panel.set_xticks(_apart(horizons), [f"{horizon:.4g}" for horizon in _apart(horizons)])
    panel.set_xticks([], minor=True)
    panel.set_xlim(horizons[0] / 1.2, 1.2 * (_beyond(recording) if endless else horizons[-1]))
    panel.set_ylim(low - 0.05 * (high - low or 1), high + 0.05 * (high - low or 1))
    panel.set_title("V against horizon in steps", fontsize=10, loc="left", color=_INK)
    for axes in (*rows, panel):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_INK, labelsize=8)
        axes.grid(color=_LINE, linewidth=0.5)
        axes.set_axisbelow(True)
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())
    return image, rows, panel


def _apart(horizons: list[float]) -> list[float]:
    """Horizons whose names do not cover each other on the axis."""
    kept = horizons[:1]
    for horizon in horizons[1:]:
        if horizon >= 1.35 * kept[-1]:
            kept.append(horizon)
    return kept


def _pixels(axes: Any, x: float, y: float) -> tuple[float, float]:
    across, up = axes.transData.transform((x, y))
    return float(across), SIZE[1] - float(up)


def _fitted(frame: npt.NDArray[np.uint8]) -> tuple[Image.Image, tuple[int, int]]:
    """A frame as large as fits into 420 × 400 pixels around (250, 220), and where its corner is."""
    height, width = frame.shape[:2]
    scale = min(420 / width, 400 / height)
    scale = int(scale) if scale >= 1 else scale  # whole pixels stay sharp
    size = max(1, round(width * scale)), max(1, round(height * scale))
    image = Image.fromarray(frame).resize(size, Image.Resampling.NEAREST)
    return image, ((500 - size[0]) // 2, (440 - size[1]) // 2)
