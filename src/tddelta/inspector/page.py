"""One HTML file that shows a recording: it needs no network, and nothing beside it."""

import base64
import io
import math
import re
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

import tddelta
from tddelta._plain import as_whole
from tddelta.decomposition import decompose
from tddelta.errors import ConfigError
from tddelta.inspector import LARGEST_SIDE, Critic, Recording
from tddelta.queries import value_at
from tddelta.timescales import number_text

MOST_PIXELS, MOST_BYTES = 128_000_000, 9_000_000
"""Pixels of all pictures, and bytes of these as text, that a page keeps as they are. More is reduced."""

_SHEET = 8192
"""Width of a sheet of pictures, in pixels: less than any browser's limit."""

_BETWEEN = 8
"""Horizons of the curve per factor of 2, and at least so many between two trained ones."""


def html(recording: Recording, *, step: int = 0, provenance: str = "") -> str:
    """The page of a recording.

    Args:
        recording: The game, and one critic or two.
        step: Where the cursor stands at first.
        provenance: Sentence on how it was made, for the last line.

    Returns:
        The file's text; the same recording gives the same text.

    Raises:
        ConfigError: The recording has no such step.
    """
    _check_step(recording, step := as_whole(step))
    pictures = recording.pictures
    frames = None if pictures is None else packed_pictures(pictures)
    names = " beside ".join(critic.name for critic in recording.critics)
    title = f"{names} on {recording.environment}" if recording.environment else names
    data = {
        "steps": len(recording),
        "step": step,
        "file": re.sub(r"[^\w.+-]+", "-", title).strip("-") or "recording",
        "rewards": _packed(recording.rewards),
        "terminated": _packed(recording.terminated),
        "truncated": _packed(recording.truncated),
        "lives": None if recording.lives is None else _packed(recording.lives.astype(np.float64)),
        "critics": [_critic(recording, critic) for critic in recording.critics],
        "frames": frames,
    }
    environment = Environment(
        loader=PackageLoader("tddelta.inspector", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["number_text"] = number_text
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment.get_template("inspector.html.j2").render(
        title=title,
        lead=_lead(recording),
        recording=recording,
        frames=frames,
        data=data,
        provenance=f"{provenance} Made by tddelta {tddelta.__version__}.".strip(),
    )


def _check_step(recording: Recording, step: Any) -> None:
    if type(step) is not int or not 0 <= step < len(recording):
        raise ConfigError(f"the recording has steps 0 … {len(recording) - 1}; got {step}: name one of them")


def _critic(recording: Recording, critic: Critic) -> dict[str, Any]:
    scales = critic.scales
    return {
        "name": critic.name,
        "gammas": [float(gamma) for gamma in critic.gammas],
        # JSON knows no infinity
        "horizons": [None if math.isinf(horizon) else horizon for horizon in scales.horizons],
        "w": _packed(critic.deltas),
        "v": _packed(critic.values),
        "came": _packed(recording.realised(critic)),
        "between": _curve(critic),
    }


def _curve(critic: Critic) -> list[tuple[float, list[float]]]:
    """Horizons from the shortest to the longest finite one, each with the weights of V_z in the value there."""
    scales = critic.scales
    finite = [gamma for gamma in scales.gammas if gamma < 1]
    if len(finite) < 2:
        return []
    trained = [math.log(1 / (1 - gamma)) for gamma in finite]
    points = [
        np.linspace(low, high, max(_BETWEEN, round(_BETWEEN * (high - low) / math.log(2))), endpoint=False)
        for low, high in pairwise(trained)
    ]
    where = [*np.concatenate(points), trained[-1]]
    asked = [min(max(1 - math.exp(-x), finite[0]), finite[-1]) for x in where]
    # value_at is linear in the components: those of V_z = 1 at one scale alone give its weight
    weights = value_at(decompose(np.eye(len(scales))), scales, asked)
    return [(math.exp(x), [float(w) for w in column]) for x, column in zip(where, weights.T, strict=True)]


def _packed(array: npt.NDArray[Any]) -> dict[str, str]:
    """The bytes of an array, in the type it has: the page shows these very numbers."""
    kind = {"b": "u1", "f": f"f{array.dtype.itemsize}"}[array.dtype.kind]
    plain = np.ascontiguousarray(array, np.dtype(kind).newbyteorder("<"))
    return {"type": kind, "data": base64.b64encode(plain.tobytes()).decode()}


def packed_pictures(frames: npt.NDArray[np.uint8]) -> dict[str, Any]:
    """Frames as PNG files with a palette, made smaller until the page has room for them.

    Args:
        frames: (T, H, W, 3) bytes.

    Returns:
        `sheets`, the files in base64, each with `columns` frames side by side; `width` and `height` of a frame;
        `reduced`, the factor by which it was made smaller, and `rounded`, whether a sheet had over 256 colours.
    """
    factor = 1
    while max(frames.shape[1:3]) > LARGEST_SIDE * factor or frames[:, ::factor, ::factor, 0].size > MOST_PIXELS:
        factor += 1
    while sum(map(len, (found := _sheets(frames[:, ::factor, ::factor]))["sheets"])) > MOST_BYTES:
        factor += 1
    return found | {"reduced": factor}


def _sheets(frames: npt.NDArray[np.uint8]) -> dict[str, Any]:
    height, width = frames.shape[1:3]
    columns, sheets, rounded = max(1, _SHEET // width), [], False
    for first in range(0, len(frames), columns):
        # side by side, so that what does not change repeats within deflate's reach and costs next to nothing
        rows = frames[first : first + columns].transpose(1, 0, 2, 3).reshape(height, -1, 3)
        sheet, file = Image.fromarray(np.ascontiguousarray(rows)), io.BytesIO()
        rounded |= sheet.getcolors(256) is None
        # exact for up to 256 colours; a game of Atari has 128
        sheet.quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
        sheets.append(base64.b64encode(file.getvalue()).decode())
    return {"width": width, "height": height, "columns": columns, "sheets": sheets, "rounded": rounded}


def _lead(recording: Recording) -> str:
    ends = recording.terminated | recording.truncated
    if recording.lives is not None:  # to the learner the loss of a life may be an end; the game goes on
        ends[:-1] &= recording.lives[1:] >= recording.lives[:-1]
    episodes = int(ends.sum())
    last = "the game ended" if recording.terminated[-1] else "it was cut" if recording.truncated[-1] else "it went on"
    if episodes > 1:
        last += f" after {episodes} episodes"
    return f"{len(recording):,} steps, return {float(recording.rewards.sum()):.6g}; then {last}."


def table(recording: Recording, step: int) -> list[tuple[list[str], list[list[str]], str]]:
    """For each critic, heads of columns, rows and a sentence about one step; ConfigError if there is no such step."""
    _check_step(recording, step)
    found = []
    for critic in recording.critics:
        scales, deltas, values = critic.scales, critic.deltas[step], critic.values[step]
        came, total = recording.realised(critic)[step], float(np.abs(deltas).sum())
        rows = [
            [
                f"W_{z}",
                number_text(scales.horizons[z]),
                scales.labels[z],
                f"{deltas[z]:.4g}",
                f"{100 * abs(deltas[z]) / total:.0f} %" if total else "–",
                f"{values[z]:.4g}",
                f"{came[z]:.4g}" if np.isfinite(came[z]) else "–",
            ]
            for z in range(len(scales))
        ]
        most = int(np.abs(deltas).argmax())
        text = f"{critic.name}, step {step:,}: V over {number_text(scales.horizons[-1])} steps is {values[-1]:.4g}"
        if len(scales) > 1 and total:
            text += f"; its largest part is W_{most}, {100 * abs(deltas[most]) / total:.0f} % of all parts"
        heads = ["part", "horizon", "γ", "W", "share", "V", "came"]
        found.append((heads, rows, f"{text}."))
    return found
