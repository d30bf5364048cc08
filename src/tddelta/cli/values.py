"""The command that evaluates a log: `values`."""

import dataclasses
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from tddelta._plain import counted
from tddelta.cli.reading import Ladder, option, print_table
from tddelta.cli.reproduce import write_folder
from tddelta.errors import ConfigError
from tddelta.timescales import TimeScales, number_text

if TYPE_CHECKING:
    from tddelta.tabular.logs import Calibration, LogValues

_MEASURES = {
    **{"bias": "bias", "bias_error": "± s.e.", "rmse": "RMSE"},
    **{"explained_variance": "explained variance", "correlation": "correlation"},
}
"""Attributes of a calibration, and the heads of their columns."""
_SHARED = (
    *("method", "model", "features", "held_out", "tolerance", "episode", "state", "reward", "terminated", "truncated"),
    *("time", "time_unit", "next_prefix", "last_row", "tiles", "tilings", "ridge"),
)
"""Options that `evaluate_log` has, too."""
_LINES = 20  # of the table
_DRAWN = 8  # lines in the figure of V against the horizon


@dataclasses.dataclass(frozen=True, kw_only=True)
class Values(Ladder):
    """Evaluate the policy that wrote a log, at every horizon.

    Prints V of each state (or, with --features, of some rows) and how well V predicted the returns of the last
    episodes, which are held out. --out writes tables and figures into a new folder. This is no off-policy evaluation:
    it says nothing about any other policy.

    A row of the log holds a state, and the reward and flags of the step out of it. If an episode ends without having
    terminated, the state after its last row must be known: from the column next_state, or with --last-row observation.

    Example: tddelta values log.csv --gamma 0.99 --features pressure temperature --model tiles --out values
    """

    log: Annotated[Positional[str], arg(metavar="LOG")]
    """File (.csv, .tsv, .npz, .parquet), or minari:NAME for a Minari dataset."""
    method: Literal["lambda", "td0", "monte_carlo"] = "lambda"
    """lambda: λ-returns; td0: the Markov chain that was seen; monte_carlo: mean returns."""
    features: Annotated[tuple[str, ...] | None, option("NAME [NAME ...]")] = None
    """Columns of continuous sensors, in place of --state; needs --model."""
    model: Annotated[Literal["tiles", "linear"] | None, option("tiles|linear")] = None
    """Model that makes values of --features."""
    episode: str = "episode"
    """Column of the episode."""
    state: Annotated[tuple[str, ...] | None, option("NAME [NAME ...]", "default: state")] = None
    """Column of the state's label, or several that together are one."""
    reward: str = "reward"
    """Column of the reward."""
    terminated: str = "terminated"
    """Column of flags of steps into a terminal state; none if no episode ever terminates."""
    truncated: str = "truncated"
    """Column of flags of steps after which the episode was cut; none if there is no such column."""
    time: Annotated[str | None, option("NAME")] = None
    """Column of time stamps, numbers or dates (in seconds); steps then take as long as they took."""
    time_unit: float = 1.0
    """Time that one step of γ takes: 3600 with dates makes horizons hours."""
    next_prefix: str = "next_"
    """Prefix of the names of columns of the state after a step."""
    last_row: Literal["step", "observation"] = "step"
    """Meaning of the last row of an episode that has not terminated: a step, or its final observation alone."""
    held_out: float = 0.2
    """Share of the episodes, the last ones, that are held out to see how well V predicts."""
    tolerance: Annotated[float | None, option("FLOAT", "default: 0.01")] = None
    """Weight that what follows a cut may have in a realised return that counts as known."""
    tiles: Annotated[int | None, option("INT", "default: 8")] = None
    """Tiles per feature of one grid of --model tiles."""
    tilings: Annotated[int | None, option("INT", "default: 8")] = None
    """Number of its shifted grids."""
    ridge: Annotated[float | None, option("FLOAT", "default: 0.01")] = None
    """Penalty on the weights of a model, in visits."""
    rows: Annotated[int | None, option("INT", "default: 20")] = None
    """Lines of the table: the most visited states, or evenly spread rows of the log."""
    out: Annotated[Path | None, option("DIR", "default: nothing is written")] = None
    """Folder to write values.csv, calibration.csv, bins.csv and two figures into; it must not exist yet."""
    json: bool = False
    """Print one JSON object on the standard output, and nothing else."""

    def run(self, command: Sequence[str]) -> int:
        """Evaluate, print, write."""
        self._check()
        from tddelta.tabular.logs import evaluate_log

        scales = self.made(traces=self.method == "lambda")
        options: dict[str, Any] = {name: getattr(self, name) for name in _SHARED}
        for name in ("terminated", "truncated"):
            options[name] = None if options[name].lower() == "none" else options[name]
        result = evaluate_log(self.log, scales, **options)
        if self.out is not None:
            write_folder(self.out, lambda folder: self._write(folder, result))
        if self.json:
            print(json.dumps(self._plain(result), allow_nan=False))
        else:
            self._print(result)
        if self.out is not None:
            print(f"written: {self.out}", file=sys.stderr if self.json else sys.stdout)
        return 0

    def _check(self) -> None:
        """ConfigError for what `evaluate_log` does not see."""
        if self.out is not None and os.path.lexists(self.out):
            raise ConfigError(f"{self.out} exists already, and nothing is overwritten: name another folder with --out")
        if self.rows is not None and self.rows < 1:
            raise ConfigError(f"--rows must be at least 1; got {self.rows}")
        if self.rows is not None and self.json and self.model is None:
            raise ConfigError(
                f"--rows has no meaning with --json; got {self.rows}: leave it out, every state is printed"
            )
        for name in ("lam", "rule") if self.method != "lambda" else ():
            for what, value in ((f"--{name}", getattr(self, name)), (f"{name} in --scales", self.within.get(name))):
                if value is not None:
                    raise ConfigError(f"{what} has no meaning with --method {self.method}; got {value}: leave it out")

    @property
    def _unit(self) -> str:
        return "steps" if self.time is None else "units of time"

    def _print(self, result: "LogValues") -> None:
        shown = _chosen(result, self.rows or _LINES)
        print(f"V of the policy that wrote {self.log}; horizons 1/(1 − γ) in {self._unit}\n")
        heads = ["state", "visits"] if result.states else ["row"]
        rows = []
        for place in shown:
            named = [str(result.states[place]), f"{result.visits[place]:,}"] if result.states else [str(place + 1)]
            rows.append([*named, *map(number_text, result.values[place])])
        print_table([*heads, *map(number_text, result.scales.horizons)], rows)
        if len(result.values) > len(shown):
            print(f"{len(shown)} of {len(result.values):,} {'states' if result.states else 'rows'}; --rows shows more")
        training = f"{counted(result.steps, 'step')} of {counted(result.episodes - result.held_out, 'episode')}"
        print(f"\nfitted to {training} ({result.model}, {result.method})")
        if result.left_out:
            left_out = counted(result.left_out, "step")
            print(f"{left_out} left out: after them an episode was cut in a state that has no steps")
        found = result.calibration
        if found is None:
            return
        last = "episode" if found.episodes == 1 else f"{found.episodes:,} episodes"
        print(f"\nPredicted against realised returns of the last {last}, {counted(found.steps, 'step')}")
        print("bias: mean of predicted − realised; above 0, the values promise too much\n")
        columns = {
            "horizon": map(number_text, result.scales.horizons),
            "γ": result.scales.labels,
            **{"steps": map("{:,}".format, found.count), "too near a cut": map("{:,}".format, found.too_near)},
            **{head: map(number_text, getattr(found, name)) for name, head in _MEASURES.items()},
        }
        print_table(list(columns), [*zip(*columns.values(), strict=True)], left=0)
        if found.unseen:
            print(f"in states that were not seen in training: {counted(found.unseen, 'more step')}")

    def _plain(self, result: "LogValues") -> dict[str, Any]:
        """Numbers as strict JSON; with features the rows that the table shows, since --out has them all."""
        names = ("model", "method", "scales", "episodes", "held_out", "steps", "left_out")
        plain: dict[str, Any] = {"log": self.log} | {name: getattr(result, name) for name in names}
        plain["scales"] = result.scales.to_dict()
        if result.states:
            entries = zip(result.states, result.visits, result.values, strict=True)
            plain["states"] = [{"state": _json(s), "visits": int(n), "values": _finite(row)} for s, n, row in entries]
        else:
            shown = _chosen(result, self.rows or _LINES)
            plain["rows"] = [{"row": place + 1, "values": _finite(result.values[place])} for place in shown]
        found = result.calibration
        if found is not None:
            counts = {name: getattr(found, name) for name in ("episodes", "steps", "unseen", "tolerance")}
            counts |= {name: getattr(found, name).tolist() for name in ("count", "too_near")}
            plain["calibration"] = counts | {name: _finite(getattr(found, name)) for name in _MEASURES}
        return plain

    def _write(self, folder: Path, result: "LogValues") -> None:
        from tddelta._matplotlib import own_style

        with own_style():
            _write_values(folder, result, self._unit)
            if result.calibration is not None:
                _write_calibration(folder, result.scales, result.calibration)


def _write_values(folder: Path, result: "LogValues", unit: str) -> None:
    """Write values.csv, all values in full precision, and values.png, some of them against the horizon."""
    from tddelta.report.figures import panels, to_bytes, values_by_horizon
    from tddelta.report.tables import Table

    names = [str(label) for label in result.states]
    heads = [f"value/gamma={label}" for label in result.scales.labels]
    records = []
    for place, row in enumerate(result.values.tolist()):
        own = {"state": names[place], "visits": int(result.visits[place])} if names else {"row": place + 1}
        records.append(own | dict(zip(heads, row, strict=True)))
    (folder / "values.csv").write_bytes(Table("values", "", (), records).to_csv().encode())
    drawn = _chosen(result, _DRAWN)
    shown = [names[place] if names else f"row {place + 1}" for place in drawn]
    figure, (axes,) = panels(1, width=5.2, height=3.6)
    values_by_horizon(axes, result.scales.horizons, result.values[drawn], shown, unit=unit)
    (folder / "values.png").write_bytes(to_bytes(figure))


def _write_calibration(folder: Path, scales: TimeScales, found: "Calibration") -> None:
    """Write calibration.csv, the measures per scale, and bins.csv and calibration.png, means over groups of steps."""
    from tddelta.report.figures import panels, predicted_against_realised, to_bytes
    from tddelta.report.tables import Column, Table

    predicted, realised, counts = found.bins()
    heads = ("gamma", "bin", "count", "predicted", "realised")
    measures, bins = [], []
    figure, axes = panels(len(scales))
    for z, (gamma, horizon) in enumerate(zip(scales.gammas, scales.horizons, strict=True)):
        numbers = {name: getattr(found, name)[z].item() for name in ("count", "too_near", *_MEASURES)}
        measures.append({"gamma": gamma, "horizon": horizon, **numbers})
        groups = zip(*(array[z].tolist() for array in (counts, predicted, realised)), strict=True)
        bins += [dict(zip(heads, (gamma, g, *group), strict=True)) for g, group in enumerate(groups, 1) if group[0]]
        remark = f"bias {number_text(numbers['bias'])}, RMSE {number_text(numbers['rmse'])}"
        title = f"horizon {number_text(horizon)}"
        predicted_against_realised(axes[z], predicted[z], realised[z], title=title, remark=remark)
    columns = tuple(Column(head, head) for head in heads)
    for table in (Table("calibration", "", (), measures), Table("bins", "", columns, bins)):
        (folder / f"{table.name}.csv").write_bytes(table.to_csv().encode())
    (folder / "calibration.png").write_bytes(to_bytes(figure))


def _chosen(result: "LogValues", limit: int) -> list[int]:
    """Places in `values` of what is shown: the most visited states, or evenly spread rows of the log."""
    import numpy as np

    if result.states:
        places = np.argsort(-result.visits, kind="stable")[:limit]
    else:
        places = np.unique(np.linspace(0, len(result.values) - 1, limit).round().astype(int))
    return [int(place) for place in places]


def _json(label: Any) -> Any:
    """A label as JSON has it: tuples become lists."""
    if isinstance(label, tuple):
        return [_json(part) for part in label]
    return label if isinstance(label, str | int) else str(label)


def _finite(values: Any) -> list[Any]:
    """Plain numbers; None where there is none."""
    return [value if math.isfinite(value) else None for value in (float(entry) for entry in values)]
