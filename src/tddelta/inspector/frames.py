"""Pictures of a game: made from what the agent saw where nothing better is known, and packed for a page."""

import base64
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""An array of any type."""

PLANES = (
    *((86, 180, 233), (240, 228, 66), (120, 120, 120), (213, 94, 0), (0, 158, 115)),
    *((204, 121, 167), (230, 159, 0), (0, 114, 178), (255, 255, 255), (150, 90, 40)),
)
"""Colours of the planes of a MinAtar observation, on black; told apart in the common kinds of colour blindness."""

LARGEST_SIDE, MOST_PIXELS, MOST_BYTES, COLOURS = 320, 128_000_000, 9_000_000, 256
"""What a page keeps as it is: pixels of a side, of all pictures, bytes of these as text, colours. More is reduced."""

_BITS = ((8, 8, 8), (4, 4, 4), (3, 3, 2))
"""Of red, green and blue; the last are never more than 256 colours."""


def from_observations(observations: Array | None) -> Array | None:
    """Frames of observations that are pictures: binary planes in colour, images as they are.

    Args:
        observations: (T, …).

    Returns:
        (T, H, W, 3) bytes; None for observations that are no picture, such as angles and speeds.
    """
    if observations is None:
        return None
    array = np.asarray(observations)
    if array.ndim == 3 and min(array.shape[1:]) >= 3:
        array = array[..., None]
    if array.ndim != 4 or min(array.shape[1:3]) < 3:
        return None
    if array.shape[-1] <= len(PLANES) and bool(((array == 0) | (array == 1)).all()):
        return _coloured(array > 0)
    if array.dtype != np.uint8:
        return None
    if array.shape[-1] == 3:
        return array
    return np.repeat(array[..., -1:], 3, axis=-1)  # grey, or the newest of a stack of grey pictures


def _coloured(planes: Array) -> Array:
    """Binary planes (T, H, W, C) in colour; a later plane covers an earlier one."""
    frames = np.zeros((*planes.shape[:3], 3), np.uint8)
    for channel in range(planes.shape[-1]):
        frames[planes[..., channel]] = PLANES[channel]
    return frames


def smaller(picture: Array) -> Array:
    """A picture (H, W, 3) with no side longer than a page keeps, by leaving out whole rows and columns."""
    factor = -(-max(picture.shape[:2]) // LARGEST_SIDE)
    return picture[::factor, ::factor].copy()  # not a view, which would keep the whole


def packed(frames: Array) -> dict[str, Any]:
    """Frames as text for a page: a palette, and indices into it.

    Each frame is combined by XOR with the one before it, all together are deflated: what does not change costs nothing.
    Up to 256 colours (an Atari game has at most 128) nothing is lost; more are rounded to 4, then 2 to 3 bits.

    Args:
        frames: (T, H, W, 3) bytes.

    Returns:
        `width`, `height`, `stride` (bytes of a frame, a multiple of 4), `palette`, `data`; `reduced`, the factor by
        which the picture was made smaller, and `rounded`, whether colours were.
    """
    factor = 1
    while max(frames.shape[1:3]) > LARGEST_SIDE * factor or frames[:, ::factor, ::factor, 0].size > MOST_PIXELS:
        factor += 1
    while len((found := _packed(frames[:, ::factor, ::factor]))["data"]) > MOST_BYTES:
        factor += 1
    return found | {"reduced": factor}


def _packed(frames: Array) -> dict[str, Any]:
    count, height, width = frames.shape[:3]
    tried = ((bits, _colours(frames, _mask(bits))) for bits in _BITS)
    bits, colours = next((bits, colours) for bits, colours in tried if len(colours) <= COLOURS)
    mask = _mask(bits)
    index = np.zeros(1 << 24, np.uint8)
    index[colours] = np.arange(len(colours))
    stride = -(-height * width // 4) * 4
    before = np.zeros(stride, np.uint8)
    deflate, parts = zlib.compressobj(9 if count * stride < 1 << 22 else 6), []
    for frame in frames:
        now = np.zeros(stride, np.uint8)
        now[: height * width] = index[_codes(frame) & mask].reshape(-1)
        parts.append(deflate.compress((now ^ before).tobytes()))
        before = now
    parts.append(deflate.flush())
    # Spread over 0 … 255, so that white stays white.
    channels = [
        ((colours >> shift & 255) >> (8 - bit)) * 255 // ((1 << bit) - 1)
        for bit, shift in zip(bits, (16, 8, 0), strict=True)
    ]
    return {
        "width": width,
        "height": height,
        "stride": stride,
        "palette": base64.b64encode(np.stack(channels, axis=-1).astype(np.uint8).tobytes()).decode(),
        "data": base64.b64encode(b"".join(parts)).decode(),
        "rounded": bits != (8, 8, 8),
    }


def _mask(bits: tuple[int, int, int]) -> int:
    """What is kept of a colour code with so many bits of red, green and blue."""
    return sum((0xFF << (8 - bit) & 0xFF) << shift for bit, shift in zip(bits, (16, 8, 0), strict=True))


def _colours(frames: Array, mask: int) -> Array:
    """Every colour code that occurs, rising."""
    seen = np.zeros(1 << 24, bool)
    for frame in frames:
        seen[_codes(frame) & mask] = True
    return np.flatnonzero(seen)


def _codes(frame: Array) -> Array:
    wide = frame.astype(np.int32)
    codes: Array = wide[..., 0] << 16 | wide[..., 1] << 8 | wide[..., 2]
    return codes
