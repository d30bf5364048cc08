"""The command that evaluates a log: `values`."""

import csv
import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from tddelta.cli.reading import Scales, print_table
from tddelta.errors import ConfigError
from tddelta.timescales import Rule, TimeScales

if TYPE_CHECKING:
    from tddelta.tabular.logs import LogValues

_FLOATS: Any = arg(metavar="FLOAT [FLOAT ...]", help_behavior_hint="")
_NONE = "none"  # a column that the log does not have
_MEASURES = ("bias", "bias_error", "rmse", "explained_variance", "correlation")
_SHARED = ("next_prefix", "last_row", "tiles", "tilings", "ridge")
_DRAWN = 8  # lines in the figure of V against the horizon


@dataclasses.dataclass(frozen=True, kw_only=True)
class Values:
    """Evaluate the policy that wrote a log, at every horizon.

    Prints V of each state (or, with --features, of some rows) and how well V predicted the returns of the last
    episodes, which are held out. --out writes tables and figures. This is no off-policy evaluation: it says nothing
    about any other policy.

    A row of the log holds a state, and the reward and flags of the step out of it. If an episode ends without having
    terminated, the state after its last row must be known: from the column next_state, or with --last-row observation.

    Example: tddelta values log.csv --gamma 0.99 --features pressure temperature --model tiles --out values
    """

    log: Annotated[Positional[str], arg(metavar="LOG")]
    """File (.csv, .tsv, .npz, .parquet), or minari:NAME for a Minari dataset."""
    gamma: float = 0.99
    """Largest discount; the others have horizons half as long, and so on."""
    lam: float = 0.95
    """λ of the returns that values are fitted to, in [0, 1]."""
    rule: Rule = "capped"
    """How λ becomes a decay c_z = λ_z γ_z of each scale."""
    horizons: Annotated[tuple[float, ...] | None, _FLOATS] = None
    """The horizons themselves, shortest first, in place of --gamma."""
    gammas: Annotated[tuple[float, ...] | None, _FLOATS] = None
    """The discounts themselves, smallest first, in place of --gamma."""
    method: Literal["lambda", "td0", "monte_carlo"] = "lambda"
    """lambda: λ-returns; td0: the Markov chain that was seen; monte_carlo: mean returns."""
    features: Annotated[tuple[str, ...] | None, arg(metavar="NAME [NAME ...]", help_behavior_hint="")] = None
    """Columns of continuous sensors, in place of --state; needs --model."""
    model: Annotated[Literal["tiles", "linear"] | None, arg(metavar="tiles|linear", help_behavior_hint="")] = None
    """What makes values of --features."""
    episode: str = "episode"
    """Column of the episode."""
    state: Annotated[tuple[str, ...], arg(metavar="NAME [NAME ...]")] = ("state",)
    """Column of the state's label, or several that together are one."""
    reward: str = "reward"
    """Column of the reward."""
    terminated: str = "terminated"
    """Column of flags of steps into a terminal state; none if no episode ever terminates."""
    truncated: str = "truncated"
    """Column of flags of steps after which the episode was cut; none if there is no such column."""
    time: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """Column of time stamps, numbers or dates (in seconds); steps then take as long as they took."""
    time_unit: float = 1.0
    """Time that one step of γ takes: 3600 with dates makes horizons hours."""
    next_prefix: str = "next_"
    """What stands before the names of columns of the state after a step."""
    last_row: Literal["step", "observation"] = "step"
    """Whether the last row of an episode that has not terminated is a step, or its final observation alone."""
    held_out: float = 0.2
    """Share of the episodes, the last ones, that are held out to see how well V predicts."""
    tolerance: float = 0.01
    """Weight that what follows a cut may have in a realised return that counts as known."""
    tiles: int = 8
    """Tiles per feature of one grid."""
    tilings: int = 8
    """Number of shifted grids."""
    ridge: float = 0.01
    """Penalty on the weights of a model, in visits."""
    rows: int = 20
    """Lines of the table: the most visited states, or evenly spread rows of the log."""
    out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="(default: nothing is written)")] = None
    """Folder for values.csv, calibration.csv, bins.csv, values.png and calibration.png."""
    json: bool = False
    """Print one JSON object on the standard output, and nothing else."""

    def run(self, command: Sequence[str]) -> int:
        """Evaluate, print, write."""
        if self.rows < 1:
            raise ConfigError(f"--rows must be at least 1; got {self.rows}")
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            raise ConfigError(f"--out must be a folder; {self.out} is a file: choose another --out")
        from tddelta.tabular.logs import evaluate_log

        named = ("method", "model", "features", "held_out", "tolerance", "episode", "reward", "time", "time_unit")
        options: dict[str, Any] = {name: getattr(self, name) for name in (*named, *_SHARED)}
        result = evaluate_log(
            self.log,
            self.scales(),
            state=self.state[0] if len(self.state) == 1 else self.state,
            terminated=None if self.terminated == _NONE else self.terminated,
            truncated=None if self.truncated == _NONE else self.truncated,
            **options,
        )
        if self.json:
            print(json.dumps(self._plain(result), allow_nan=False))
        else:
            self._print(result)
        if self.out is not None:
            write(self.out, result, unit=self._unit)
            print(f"written: {self.out}", file=sys.stderr if self.json else sys.stdout)
        return 0

    def scales(self) -> TimeScales:
        """The scales that the options name."""
        return Scales(
            gamma=self.gamma, lam=self.lam, rule=self.rule, horizons=self.horizons, gammas=self.gammas
        ).scales()

    @property
    def _unit(self) -> str:
        return "steps" if self.time is None else "units of time"

    def _print(self, result: "LogValues") -> None:
        names, visits, values = shown(result, self.rows)
        print(f"V of the policy that wrote {self.log}; horizons 1/(1 − γ) in {self._unit}\n")
        heads = ["state" if result.states else "row", *(["visits"] if result.states else [])]
        heads += [f"{horizon:.4g}" for horizon in result.scales.horizons]
        rows = [
            [name, *([f"{visit:,}"] if result.states else []), *map(_number, row)]
            for name, visit, row in zip(names, visits, values, strict=True)
        ]
        print_table(heads, rows)
        total = len(result.states) if result.states else len(result.values)
        if total > len(names):
            print(f"{len(names)} of {total:,} {'states' if result.states else 'rows'}; --rows shows more")
        training = f"{result.steps:,} steps of {result.episodes - result.held_out:,} episodes"
        print(f"\nfitted to {training} ({result.model}, {result.method})")
        if result.left_out:
            print(f"{result.left_out:,} steps left out: after them an episode was cut in a state that has no steps")
        self._print_calibration(result)

    def _print_calibration(self, result: "LogValues") -> None:
        found = result.calibration
        if found is None:
            return
        print(f"\nPredicted against realised returns of the last {found.episodes:,} episodes, {found.steps:,} steps\n")
        heads = [
            "horizon",
            "γ",
            "steps",
            "too near a cut",
            "bias",
            "± s.e.",
            "RMSE",
            "explained variance",
            "correlation",
        ]
        columns = (found.count, found.too_near)
        measures = [getattr(found, name) for name in _MEASURES]
        rows = [
            [f"{horizon:.4g}", label, *(f"{column[z]:,}" for column in columns), *(_number(m[z]) for m in measures)]
            for z, (horizon, label) in enumerate(zip(result.scales.horizons, result.scales.labels, strict=True))
        ]
        print_table(heads, rows, left=0)
        if found.unseen:
            print(f"{found.unseen:,} more steps are in states that were not seen in training")

    def _plain(self, result: "LogValues") -> dict[str, Any]:
        """Numbers as strict JSON; with features the rows that the table shows, since --out has them all."""
        plain: dict[str, Any] = {"log": self.log, "model": result.model, "method": result.method}
        plain |= {"scales": result.scales.to_dict(), "episodes": result.episodes, "held_out": result.held_out}
        plain |= {"steps": result.steps, "left_out": result.left_out}
        if result.states:
            entries = zip(result.states, result.visits, result.values, strict=True)
            plain["states"] = [{"state": _json(s), "visits": int(n), "values": _finite(row)} for s, n, row in entries]
        else:
            names, _, values = shown(result, self.rows)
            plain["rows"] = [{"row": int(n), "values": _finite(row)} for n, row in zip(names, values, strict=True)]
        found = result.calibration
        if found is not None:
            counts: dict[str, Any] = {"episodes": found.episodes, "steps": found.steps, "unseen": found.unseen}
            counts |= {"tolerance": found.tolerance, "count": found.count.tolist(), "too_near": found.too_near.tolist()}
            plain["calibration"] = counts | {name: _finite(getattr(found, name)) for name in _MEASURES}
        return plain


def shown(result: "LogValues", limit: int) -> tuple[list[str], Sequence[int], Any]:
    """What a table or figure shows: the most visited states, or evenly spread rows of the log, counted from 1.

    Args:
        result: The values.
        limit: How many at most.

    Returns:
        Names, visits (of states), and values, (N, Z).
    """
    import numpy as np

    if result.states:
        chosen = np.argsort(-result.visits, kind="stable")[:limit]
        return [_text(result.states[i]) for i in chosen], result.visits[chosen].tolist(), result.values[chosen]
    chosen = np.unique(np.linspace(0, len(result.values) - 1, limit).round().astype(int))
    return [str(row + 1) for row in chosen], [0] * len(chosen), result.values[chosen]


def write(out: Path, result: "LogValues", *, unit: str = "steps") -> None:
    """Write tables in full precision and figures; files of the same names are replaced.

    Args:
        out: The folder, which is made.
        result: The values.
        unit: Of the horizons.
    """
    from tddelta.report import horizons as draw
    from tddelta.report.figures import Drawing, to_bytes

    out.mkdir(parents=True, exist_ok=True)
    scales, found = result.scales, result.calibration
    heads = [f"value/gamma={label}" for label in scales.labels]
    if result.states:
        entries = zip(result.states, result.visits, result.values, strict=True)
        _table(
            out / "values.csv",
            ["state", "visits", *heads],
            ([_text(s), int(n), *_finite(row)] for s, n, row in entries),
        )
    else:
        numbered = enumerate(result.values, start=1)
        _table(out / "values.csv", ["row", *heads], ([row, *_finite(values)] for row, values in numbered))
    names, _, values = shown(result, _DRAWN)
    figure, (axes,) = draw.panels(1, width=5.2, height=3.6)
    draw.values_by_horizon(
        axes, scales.horizons, values, names if result.states else [f"row {name}" for name in names], unit=unit
    )
    drawing = Drawing("values", "log", "Values", "V against the horizon.", "V against the horizon.", figure)
    (out / "values.png").write_bytes(to_bytes(drawing, "png"))
    if found is None:
        return
    measures = [getattr(found, name) for name in _MEASURES]
    _table(
        out / "calibration.csv",
        ["gamma", "horizon", "count", "too_near", *_MEASURES],
        (
            [gamma, scales.horizons[z], int(found.count[z]), int(found.too_near[z]), *_finite(m[z] for m in measures)]
            for z, gamma in enumerate(scales.gammas)
        ),
    )
    predicted, realised, counts = found.bins()
    numbers = ((z, group) for z in range(len(scales)) for group in range(counts.shape[1]) if counts[z, group])
    _table(
        out / "bins.csv",
        ["gamma", "bin", "count", "predicted", "realised"],
        ([scales.gammas[z], g + 1, int(counts[z, g]), predicted[z, g], realised[z, g]] for z, g in numbers),
    )
    figure, panels = draw.panels(len(scales))
    for z, each in enumerate(panels):
        remark = f"bias {_number(found.bias[z])}, RMSE {_number(found.rmse[z])}"
        title = f"horizon {scales.horizons[z]:.4g}"
        draw.predicted_against_realised(each, predicted[z], realised[z], title=title, remark=remark)
    caption = "Predicted values against realised returns."
    drawing = Drawing("calibration", "log", "Calibration", caption, caption, figure)
    (out / "calibration.png").write_bytes(to_bytes(drawing, "png"))


def _table(path: Path, heads: Sequence[str], rows: Any) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(heads)
        writer.writerows(rows)


def _json(label: Any) -> Any:
    """A label as JSON has it: tuples become lists."""
    if isinstance(label, tuple):
        return [_json(part) for part in label]
    return label if isinstance(label, str | int) else str(label)


def _text(label: Any) -> str:
    return label if isinstance(label, str) else str(label)


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "–"


def _finite(values: Any) -> list[Any]:
    """Plain numbers; None where there is none."""
    return [value if math.isfinite(value) else None for value in (float(entry) for entry in values)]
