"""The comparison of cold starts once more, straight from the files of a sweep; written from docs/wandb.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from recomputed import Points, Run, Truth
from recomputed_curves import abreast, interval

NEAR = 0.02
BySeed = dict[int, float]


@dataclass(frozen=True)
class Starts:
    """runs: by arm and seed, of the arms whose runs all began from one known checkpoint."""

    truth: Truth
    runs: dict[str, dict[int, Run]]

    @property
    def shared(self) -> list[int]:
        return sorted(set.intersection(*(set(by_seed) for by_seed in self.runs.values())))

    def content(self, arm: str) -> str:
        return next(iter(self.runs[arm].values())).record["coldstart"]["content"]

    def figures(self, arm: str, metric: str, at: str) -> BySeed:
        """seed -> first, peak or end."""
        found: BySeed = {}
        for seed, run in sorted(self.runs[arm].items()):
            points = run.points(metric)
            value = None if points is None else points[1][0] if at == "first" else run.figure(metric, at)
            found |= {} if value is None else {seed: float(value)}
        return found

    def spread(self, seed: int) -> Points:
        """max - min over the arms of the evaluation, at the versions that all have."""
        tables = []
        for _, points in abreast([by_seed[seed] for by_seed in self.runs.values()], "eval/avg"):
            tables.append(dict(zip(points[0].tolist(), points[1].tolist(), strict=True)))
        versions = sorted(set.intersection(*(set(table) for table in tables)))
        return np.array(versions), np.array([np.ptp([table[version] for table in tables]) for version in versions])

    def measures(self) -> dict[str, BySeed]:
        horizon = max(run.horizon for by_seed in self.runs.values() for run in by_seed.values())
        curves = {seed: self.spread(seed) for seed in self.shared}
        tops, ends = ({arm: self.figures(arm, "eval/avg", at) for arm in self.runs} for at in ("peak", "end"))
        return {
            "first": {seed: float(values[0]) for seed, (_, values) in curves.items()},
            "peak": {seed: float(np.ptp([tops[arm][seed] for arm in tops])) for seed in curves},
            "end": {seed: float(np.ptp([ends[arm][seed] for arm in ends])) for seed in curves},
            "trend": {seed: slope(*points) * horizon for seed, points in curves.items() if len(points[0]) > 1},
        }

    def reached(self, arm: str) -> dict[int, int | None]:
        """By seed, the first update whose evaluation is within NEAR of the best end of any start."""
        found: dict[int, int | None] = {}
        for seed in self.figures(arm, "eval/avg", "end"):
            ends = [self.figures(other, "eval/avg", "end").get(seed, -np.inf) for other in self.runs]
            versions, values = self.runs[arm][seed].metrics["eval/avg"]
            near = versions[values >= max(ends) - NEAR]
            found[seed] = int(near[0]) if near.size else None
        return found


def slope(versions: np.ndarray, values: np.ndarray) -> float:
    """Of the least-squares line."""
    x = versions - versions.mean()
    return float((x * (values - values.mean())).sum() / (x * x).sum())


def compared(truth: Truth) -> Starts | None:
    """None where all began from one cold start."""
    found = {}
    for arm in truth.arms:
        contents = {(run.record.get("coldstart") or {}).get("content") or "" for run in truth.results(arm)}
        if len(contents) == 1 and contents != {""}:
            found[arm] = {run.seed: run for run in truth.results(arm)}
    starts = Starts(truth, found)
    several = {starts.content(arm) for arm in found}
    return starts if len(several) > 1 and starts.shared else None


def estimate(by_seed: BySeed) -> tuple[float, ...]:
    """(mean,) or (mean, low, high)."""
    values = list(by_seed.values())
    return interval(values) if len(set(values)) > 1 or len(values) < 3 else (values[0],) * 3
