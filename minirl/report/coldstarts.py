"""Do cold starts come together under RL (arXiv 2512.01374, section 4.5)? The numbers, seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from minirl.report.curves import Curve, end, peak
from minirl.report.figures import BySeed
from minirl.report.findings import Judgement
from minirl.report.grammar import Relation
from minirl.report.read import Arm, Run, Sweep, abreast
from minirl.report.statistics import LEVEL, SEEDS_FOR_INTERVAL, location

EVALUATION, LENGTH = "eval/avg", "eval/length"
NEAR = 0.02  # of the seed's best end: what counts as having got there


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure by seed, its mean, and the 95 % t interval of the mean, from three seeds on."""

    by_seed: BySeed
    mean: float
    interval: tuple[float, float] | None

    @classmethod
    def of(cls, by_seed: BySeed) -> Estimate | None:
        values = list(by_seed.values())
        if not values:
            return None
        interval = location(values).interval(LEVEL) if len(values) >= SEEDS_FOR_INTERVAL else None
        return cls(by_seed, sum(values) / len(values), interval)


@dataclass(frozen=True, slots=True)
class Start:
    """One cold start. content: the beginning of its hash · reached: by seed, the first update whose evaluation is
    within NEAR of the best end that any start has with this seed; None where it never is."""

    arm: str
    content: str
    first: Estimate | None
    peak: Estimate | None
    end: Estimate | None
    reached: Mapping[int, int | None]
    lengths: tuple[Estimate | None, Estimate | None]

    @property
    def updates_to_best(self) -> float | None:
        """The mean over seeds, where all got there."""
        known = [version for version in self.reached.values() if version is not None]
        return sum(known) / len(known) if known and len(known) == len(self.reached) else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """spreads: by seed, max - min over the starts of the evaluation, over updates · first, peak, end: of the spread of
    the first evaluations, of the peaks and of the ends · trend: the change of the spread over the planned updates, by
    the least-squares line of each seed · verdicts: of the sweep's claims that starts converge."""

    starts: tuple[Start, ...]
    spreads: Mapping[int, Curve]
    first: Estimate | None
    peak: Estimate | None
    end: Estimate | None
    trend: Estimate | None
    verdicts: tuple[Judgement, ...]


def compared_starts(sweep: Sweep, judgements: Sequence[Judgement]) -> Comparison | None:
    """None where the arms began from one and the same cold start, or no seed has a result from two."""
    arms = [arm for arm in sweep.distinct_arms if arm.results and _content(arm)]
    if len({_content(arm) for arm in arms}) < 2:
        return None
    runs = {arm.name: {run.seed: run for run in arm.results} for arm in arms}
    shared = sorted(set.intersection(*(set(by_seed) for by_seed in runs.values())))
    spreads = {seed: curve for seed in shared if (curve := _spread([runs[arm.name][seed] for arm in arms])) is not None}
    if not spreads:
        return None
    ends = {arm.name: _figures(runs[arm.name], EVALUATION, end) for arm in arms}
    peaks = {arm.name: _figures(runs[arm.name], EVALUATION, peak) for arm in arms}
    horizon = max(run.horizon for arm in arms for run in arm.results)
    return Comparison(
        starts=tuple(_start(arm, runs[arm.name], ends, peaks) for arm in arms),
        spreads=spreads,
        first=Estimate.of({seed: float(curve.values[0]) for seed, curve in spreads.items()}),
        peak=Estimate.of({seed: _range(peaks, seed) for seed in spreads}),
        end=Estimate.of({seed: _range(ends, seed) for seed in spreads}),
        trend=Estimate.of({seed: _slope(curve) * horizon for seed, curve in spreads.items() if len(curve) > 1}),
        verdicts=tuple(one for one in judgements if one.claim.relation == Relation.converges),
    )


def _start(arm: Arm, runs: Mapping[int, Run], ends: Mapping[str, BySeed], peaks: Mapping[str, BySeed]) -> Start:
    best = {seed: max(by_seed[seed] for by_seed in ends.values() if seed in by_seed) for seed in ends[arm.name]}
    return Start(
        arm=arm.name,
        content=_content(arm)[:10],
        first=Estimate.of(_figures(runs, EVALUATION, _first)),
        peak=Estimate.of(peaks[arm.name]),
        end=Estimate.of(ends[arm.name]),
        reached={seed: _reached(runs[seed], level - NEAR) for seed, level in best.items()},
        lengths=(Estimate.of(_figures(runs, LENGTH, _first)), Estimate.of(_figures(runs, LENGTH, end))),
    )


def _content(arm: Arm) -> str:
    """The hash of the checkpoint that all runs of the arm began from; empty where it is not one, or not recorded."""
    found = {str((run.record.get("coldstart") or {}).get("content") or "") for run in arm.results}
    return found.pop() if len(found) == 1 else ""


def _spread(runs: Sequence[Run]) -> Curve | None:
    """max - min over the runs, at the versions that all have evaluated; what stopped is carried forward."""
    curves = abreast(runs, EVALUATION)
    if len(curves) < len(runs):
        return None
    versions = curves[0].versions
    for curve in curves[1:]:
        versions = np.intersect1d(versions, curve.versions)
    table = np.array([curve.values[np.isin(curve.versions, versions)] for curve in curves])
    return Curve(versions, table.max(axis=0) - table.min(axis=0)) if versions.size else None


def _figures(runs: Mapping[int, Run], metric: str, figure: Callable[[Curve, int], float | None]) -> dict[int, float]:
    curves = {seed: (run.curve(metric), run.horizon) for seed, run in sorted(runs.items())}
    found = {seed: figure(curve, horizon) for seed, (curve, horizon) in curves.items() if curve is not None}
    return {seed: value for seed, value in found.items() if value is not None}


def _first(curve: Curve, horizon: int) -> float | None:
    return float(curve.values[0]) if len(curve) else None


def _range(figures: Mapping[str, BySeed], seed: int) -> float:
    values = [by_seed[seed] for by_seed in figures.values() if seed in by_seed]
    return max(values) - min(values)


def _slope(curve: Curve) -> float:
    """Of the least-squares line, per update."""
    return float(np.polyfit(curve.versions.astype(np.float64), curve.values, 1)[0])


def _reached(run: Run, level: float) -> int | None:
    """The first update whose own evaluation is at least `level`."""
    curve = run.curves[EVALUATION]
    above = curve.values >= level
    return int(curve.versions[int(np.argmax(above))]) if above.any() else None
