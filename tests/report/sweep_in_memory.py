"""Sweeps as values, for tests that care about numbers and not about files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minirl.report.curves import Curve
from minirl.report.read import Arm, Run, Sweep

HORIZON = 100
Points = Mapping[int, float]  # version -> value


def curve(points: Points) -> Curve:
    return Curve(np.array(list(points), dtype=np.int64), np.array(list(points.values()), dtype=np.float64))


def run(
    seed: int, metrics: Mapping[str, Points], *, state: str = "finished", config: Mapping[str, Any] | None = None
) -> Run:
    return Run(
        seed=seed,
        folder=Path(f"run-s{seed}"),
        state=state,
        record={"num_updates": HORIZON},
        config={"metrics.collapse_margin": 4.0, "num_mini_batches": 1} | dict(config or {}),
        curves={name: curve(points) for name, points in metrics.items()},
        remarks=(),
    )


def arm(name: str, runs: Sequence[Run], **more: Any) -> Arm:
    return Arm(name, (), tuple(runs), more.get("same_as"), more.get("excluded"))


def sweep(arms: Sequence[Arm], claims: Sequence[Mapping[str, Any]] = ()) -> Sweep:
    seeds = sorted({run.seed for arm in arms for run in arm.runs})
    return Sweep(
        Path("sweep"), "sweep", "A sweep", None, (), {arm.name: arm for arm in arms}, tuple(seeds), tuple(claims)
    )


def ending_at(values: Mapping[str, Sequence[float] | Mapping[int, float]], metric: str = "eval/avg") -> list[Arm]:
    """Arms whose runs are flat at these values: `end`, `peak`, `area` and `update K` are all the value itself."""
    arms = []
    for name, figures in values.items():
        by_seed = dict(enumerate(figures)) if isinstance(figures, Sequence) else figures
        arms.append(arm(name, [run(seed, {metric: {0: x, 50: x, 100: x}}) for seed, x in by_seed.items()]))
    return arms


def evaluations(scores: Sequence[float], error: float = 0.02) -> dict[str, Points]:
    """eval/avg and eval/se at versions spread over the plan."""
    versions = np.linspace(0, HORIZON, len(scores)).astype(int).tolist()
    return {"eval/avg": dict(zip(versions, scores, strict=True)), "eval/se": dict.fromkeys(versions, error)}
