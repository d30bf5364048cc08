"""See what a value function believes, along one game: a page, a table of one moment, a video.

Everything is made from a recording: see `tddelta.inspector.recordings` for its few arrays, which any code can write.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tddelta.errors import ConfigError
from tddelta.inspector.recordings import Critic, Recording
from tddelta.runs.files import ELSEWHERE, replace, storing

__all__ = ["Critic", "Recording", "inspect"]


def inspect(
    recording: "str | os.PathLike[str] | Mapping[str, Any] | Recording",
    out: str | os.PathLike[str] = "inspect.html",
    *,
    step: int = 0,
    video: str | os.PathLike[str] | None = None,
) -> Path:
    """Show a recording on one HTML page that needs no network.

    Args:
        recording: An `.npz` file, its arrays by name, or a `Recording`: `rewards` (T,), `deltas` (T, Z), `gammas`
            (Z,), `terminated` and `truncated` (T,); `frames` and others are optional, see
            `tddelta.inspector.recordings`. For a run directory use the command `tddelta inspect`, or
            `tddelta.inspector.record`.
        out: The page, ending in `.html`, or a folder for `inspect.html`.
        step: Where the cursor stands at first.
        video: Write an `.mp4` there too; needs the extra `video`.

    Returns:
        The path of the page.

    Raises:
        ConfigError: `recording` is of another kind, there is no such file, or the recording has no such step.
        DataError: A field is missing, or something in it is not finite.
        ShapeError: The fields do not belong together.
        MissingExtra: A video is asked for, and the extra is not installed.
        StorageError: The page cannot be written.
    """
    return write(recording if isinstance(recording, Recording) else Recording.read(recording), out, step, video)


def write(
    recording: Recording,
    out: str | os.PathLike[str],
    step: int = 0,
    video: str | os.PathLike[str] | None = None,
    provenance: str = "",
) -> Path:
    """Write the page of a recording, and a video; see `inspect`. `provenance` says how the recording was made."""
    from tddelta.inspector.page import html

    target = Path(out) if Path(out).suffix == ".html" else Path(out) / "inspect.html"
    if video is not None and Path(video).suffix != ".mp4":
        raise ConfigError(f"video must end in .mp4; got {os.fspath(video)!r}")
    text = html(recording, step=step, provenance=provenance)
    with storing(target, ELSEWHERE):
        if not target.parent.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
    replace(target, text.encode(errors="backslashreplace"), again=ELSEWHERE)
    if video is not None:
        from tddelta.inspector.video import write_video

        write_video(recording, Path(video))
    return target
