"""What the page's script is given: every run, mean, band, onset and end of every plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from document import Document
from recomputed import Points, Run, Truth, letter
from recomputed_curves import band, curve, decoded, sampled, values_of

ARM_KEYS = {"index", "letter", "name", "kind", "runs", "versions", "mean", "breaks"}
MOST_POINTS, MOST_SEED_POINTS = 120, 80  # of a mean and of a run, that are drawn


def kind(index: int) -> str:
    return f"arm c{index % 8} d{index % 6}"


def stopped(run: Run) -> bool:
    return run.last < run.horizon and run.state != "running"


def kept(page: Document, where: str, found: Sequence[float], whole: Points, most: int, seen: np.ndarray) -> np.ndarray:
    """The places of the points that are drawn: all, or of a long curve as many as can be seen, with both of its ends,
    its lowest and its highest."""
    places = np.searchsorted(whole[0], np.rint(found))
    if len(whole[0]) <= most:
        if len(found) != len(whole[0]):
            page.wrong.append(f"{where}: {len(found)} points of {len(whole[0])}")
        return np.arange(len(whole[0]))
    needed = {0, len(whole[0]) - 1, int(seen.argmin()), int(seen.argmax())}
    if len(found) > most or not needed <= set(places.tolist()):
        page.wrong.append(f"{where}: thinned to {len(found)} points, without {needed - set(places.tolist())}")
    return places


def script(page: Document, truth: Truth) -> None:
    """Every value under every key of it; a new key is not known here and fails."""
    assert page.script.keys() == {"horizon", "tokens", "plots"}
    assert page.script["horizon"] == max(truth.horizon, 1)
    names = list(truth.arms)
    assert len(page.script["tokens"]) == len(names)
    for arm, axis in zip(names, page.script["tokens"], strict=True):
        _tokens(page, sampled(truth, arm), axis)
    for metric, plot in page.script["plots"].items():
        assert plot.keys() == {"log", "low", "high", "arms"}
        shown = [arm for arm in names if any(metric in run.metrics for run in truth.arms[arm])]
        assert [(one["index"], one["name"]) for one in plot["arms"]] == [(names.index(a), a) for a in shown], metric
        for one in plot["arms"]:
            _arm(page, truth, metric, plot, one)


def _tokens(page: Document, known: list[Points], axis: dict[str, list[int]] | None) -> None:
    if axis is None:
        assert not known
        return
    versions = axis["versions"]
    assert (versions[0], versions[-1]) == (0, max(int(points[0][-1]) for points in known))
    expected = np.mean([np.interp(versions, *points) for points in known], axis=0)
    _compare(page, "tokens", axis["tokens"], expected, 0.5)


def _arm(page: Document, truth: Truth, metric: str, plot: dict[str, Any], one: dict[str, Any]) -> None:
    arm, log, where = one["name"], plot["log"], f"script, {metric}, {one['name']}"
    assert one.keys() - {"lower", "upper"} == ARM_KEYS
    assert (one["letter"], one["kind"]) == (letter(one["index"]), kind(one["index"]))
    runs = [run for run in truth.arms[arm] if metric in run.metrics]
    assert len(runs) == len(one["runs"])
    step = (plot["high"] - plot["low"]) / (64**3 / 2)
    for run, drawn in zip(runs, one["runs"], strict=True):
        assert drawn.keys() == {"at", "values", "stopped", "onset"}
        assert (drawn["stopped"], drawn["onset"]) == (run.last if stopped(run) else None, run.onset), where
        whole = curve(truth, run, metric)
        at = decoded(drawn["at"]) * truth.horizon
        chosen = kept(page, where, at, whole, MOST_SEED_POINTS, whole[1])
        found = values_of(decoded(drawn["values"]), plot["low"], plot["high"], log=log)
        _compare(page, where, at, whole[0][chosen], truth.horizon / 64**3 + 1e-9)
        _near(page, where, found, whole[1][chosen], step, log=log)
    over = band(truth, arm, metric, log=log)
    if over is None:
        assert (one["mean"], one["versions"], one.get("lower")) == ([], [], None), where
        return
    chosen = kept(page, where, one["versions"], (over.versions, over.mean), MOST_POINTS, over.mean)
    _compare(page, where, one["versions"], over.versions[chosen], 0)
    stretch = [over.stretch[place] for place in chosen]
    assert one["breaks"] == [i for i in range(1, len(stretch)) if stretch[i] != stretch[i - 1]], where
    size = np.abs(over.mean).max()
    _compare(page, where, one["mean"], over.mean[chosen], 1e-4 * (np.abs(over.mean[chosen]) if log else size))
    assert ("lower" in one, "upper" in one) == (over.num_seeds >= 3,) * 2
    for edge, values in (("lower", over.low), ("upper", over.high)) if over.num_seeds >= 3 else ():
        found = values_of(decoded(one[edge]), plot["low"], plot["high"], log=log)
        _near(page, where, found, values[chosen], step, log=log)


def _near(page: Document, where: str, found: Any, expected: np.ndarray, step: float, *, log: bool) -> None:
    """To a step of the coding, which on a logarithmic axis is a factor."""
    _compare(page, where, found, expected, (np.abs(expected) * step * np.log(10) if log else step) + 1e-12)


def _compare(page: Document, where: str, found: Any, expected: np.ndarray, tolerance: Any) -> None:
    there = np.array(found, float)
    page.num_numbers += there.size
    if there.shape != expected.shape:
        page.wrong.append(f"{where}: {there.shape} numbers, expected {expected.shape}")
    elif there.size and (np.abs(there - expected) > tolerance).any():
        worst = int((np.abs(there - expected) - tolerance).argmax())
        page.wrong.append(f"{where}: {there[worst]!r} should be {expected[worst]!r}")
