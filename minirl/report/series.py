"""What the page's script reads: every drawn curve, small enough that thirty runs fit into a page.

Means are numbers, for the cursor. Single seeds and bands are only drawn: three letters a number, on the plot's own
scale, which is finer than a pixel also where a logarithmic axis spans many decades.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import ceil, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minirl.report.markup import Markup
from minirl.report.panels import Line, Panel, Series
from minirl.report.plots import arm_class, letter
from minirl.report.read import Arm, Run, Sweep

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
LETTERS = 3  # a number
LEVELS = len(DIGITS) ** LETTERS  # values that they tell apart
DIGITS_SHOWN = 5  # of a mean, after those that all values of its plot share
MOST_KNOTS = 257  # of the curve of tokens over updates, which bends at rollout batches, and little
CURSOR = 3  # digits that the cursor tells
Values = NDArray[np.float64]


def script_data(sweep: Sweep, drawn: Mapping[Panel, Sequence[Series]], horizon: int) -> Markup:
    """The JSON of the script element. `<` is written as an escape, so that no name can end it."""
    content = {
        "horizon": max(horizon, 1),
        "tokens": [_tokens(arm) for arm in sweep.distinct_arms],
        "plots": {panel.metric: _plot(panel, series, max(horizon, 1)) for panel, series in drawn.items()},
    }
    return Markup(json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))


def _plot(panel: Panel, series: Sequence[Series], horizon: int) -> dict[str, Any]:
    values = np.concatenate([part for one in series for part in _parts(one)])
    low, high = extent(values, logarithmic=panel.logarithmic)
    scale = {"log": panel.logarithmic, "low": low, "high": high}
    digits = DIGITS_SHOWN if panel.logarithmic else DIGITS_SHOWN + _leading(values)

    def code(part: Values) -> str:
        return letters(shares(part, low, high, logarithmic=panel.logarithmic))

    def run(line: Line) -> dict[str, Any]:
        at = letters(line.curve.versions / horizon)
        return {"at": at, "values": code(line.curve.values), "stopped": line.stopped, "onset": line.onset}

    arms = []
    for one in series:
        arm: dict[str, Any] = {"index": one.index, "letter": letter(one.index), "name": one.name}
        arm |= {"kind": arm_class(one.index), "runs": [run(line) for line in one.lines]}
        arm |= {"versions": [], "mean": [], "breaks": []}
        if one.mean is not None:
            arm |= {
                "versions": one.mean.versions.tolist(),
                "mean": [_short(v, digits) for v in one.mean.mean.tolist()],
                "breaks": [int(part[0]) for part in one.mean.stretches()[1:]],
            }
        if one.mean is not None and one.mean.num_seeds >= 3:
            arm |= {"lower": code(one.mean.low), "upper": code(one.mean.high)}
        arms.append(arm)
    return scale | {"arms": arms}


def _short(value: float, digits: int) -> float:
    """The value with so many digits, or with as many more as it takes that the cursor, which rounds it once more, tells
    what it would tell of the value itself."""
    while f"{float(f'{value:.{digits}g}'):.{CURSOR}g}" != f"{value:.{CURSOR}g}":
        digits += 1
    return float(f"{value:.{digits}g}")


def _leading(values: Values) -> int:
    """How many leading digits say nothing about differences: 2 for values between 1.001 and 1.009."""
    largest, span = float(np.abs(values).max()), float(values.max() - values.min())
    return max(ceil(log10(largest / span)), 0) if span else 0


def _parts(one: Series) -> list[Values]:
    edges = [one.mean.low, one.mean.high] if one.mean is not None else []
    return [line.curve.values for line in one.lines] + edges


def extent(values: Values, *, logarithmic: bool) -> tuple[float, float]:
    """Between which numbers the letters of a plot count: its lowest and highest value; on a logarithmic axis the
    decimal logarithms of its smallest and largest magnitude but 0."""
    if not logarithmic:
        return float(values.min()), float(values.max())
    sizes = np.log10(np.abs(values[values != 0]))
    return (float(sizes.min()), float(sizes.max())) if sizes.size else (0.0, 0.0)


def shares(values: Values, low: float, high: float, *, logarithmic: bool) -> Values:
    """Each value as a number from 0 to 1. Linear: its share of low to high. Logarithmic: 1/2 is zero, above it are
    positive and below it negative values, the further out the larger, with LEVELS / 2 - 1 steps to either side."""
    span = high - low or 1.0
    if not logarithmic:
        return (values - low) / span
    half = LEVELS // 2
    size = np.log10(np.abs(values), where=values != 0, out=np.full_like(values, low))
    steps = 1 + np.rint(np.clip((size - low) / span, 0, 1) * (half - 2))
    return (half + np.sign(values) * steps) / (LEVELS - 1)


def letters(parts: Values) -> str:
    """Each number from 0 to 1 as LETTERS letters, the leading one first."""
    codes = np.rint(np.clip(parts, 0, 1) * (LEVELS - 1)).astype(np.int64)
    places = [len(DIGITS) ** place for place in reversed(range(LETTERS))]
    return "".join(DIGITS[code // place % len(DIGITS)] for code in codes.tolist() for place in places)


def _tokens(arm: Arm) -> dict[str, list[int]] | None:
    """Response tokens that had been sampled when a version was made, means over the runs that recorded them."""
    totals = [total for run in (arm.results or arm.runs) if (total := sampled_tokens(run)) is not None]
    if not totals:
        return None
    bends = np.unique(np.concatenate([versions for versions, _ in totals])).astype(np.int64)
    at = bends[np.unique(np.linspace(0, bends.size - 1, MOST_KNOTS).round().astype(np.int64))]
    mean = np.mean([np.interp(at, versions, tokens) for versions, tokens in totals], axis=0)
    return {"versions": at.tolist(), "tokens": np.rint(mean).astype(np.int64).tolist()}


def sampled_tokens(run: Run) -> tuple[Values, Values] | None:
    """(versions, tokens): tokens[i] response tokens were sampled for the updates up to versions[i]. None where the run
    has not recorded any."""
    curve = run.curves.get("tokens/response")
    if curve is None or not len(curve):
        return None
    ends = np.append(curve.versions[1:], max(run.version, int(curve.versions[-1]) + 1))
    return np.append(curve.versions[:1], ends), np.append(0.0, np.cumsum(curve.values))
