"""How often the detector of collapse is wrong: `python tests/metrics/detector_rates.py` prints the tables of
docs/collapse.md. Synthetic curves say what a threshold costs; recorded toy runs say what real curves do.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from minirl.metrics.alarms import BANDS, Row, alarm, early_steps
from minirl.metrics.collapse import collapse, collapse_onset, evaluations

TRACES = Path(__file__).with_name("collapse_traces.json.gz")
MARGIN = 4.0  # metrics.collapse_margin
EVALUATIONS = 40  # of a synthetic run; one standard error is 1 there
COLLAPSED, HEALTHY = 0.5, 0.85  # of its own peak that a run keeps: below it has collapsed, above it has not

# --- synthetic ----------------------------------------------------------------------------------------------------


def plateau(random: np.random.Generator) -> np.ndarray:
    return np.full(EVALUATIONS, 40.0)


def rise(random: np.random.Generator) -> np.ndarray:
    """To a plateau, within the first quarter."""
    return 20 + 20 * np.minimum(np.arange(EVALUATIONS) / random.uniform(3, 10), 1.0)


def dip(random: np.random.Generator) -> np.ndarray:
    """Two evaluations 10 standard errors below, that recover."""
    curve, at = rise(random), int(random.integers(10, 34))
    curve[at : at + 2] -= 10
    return curve


def fall(size: float) -> Callable[[np.random.Generator], np.ndarray]:
    """By `size` standard errors over a few evaluations, beginning in the middle half of the run."""

    def curve(random: np.random.Generator) -> np.ndarray:
        begin, length = random.integers(10, 30), random.integers(1, 6)
        return rise(random) - size * np.clip((np.arange(EVALUATIONS) - begin) / length, 0, 1)

    return curve


def rows_of(curve: np.ndarray, random: np.random.Generator) -> list[Row]:
    """An evaluation per step, with independent errors of 1 (those of a run share their problems and draws, so they
    scatter less), and a training reward with twice that noise."""
    scores, rewards = curve + random.normal(size=len(curve)), curve + 2 * random.normal(size=len(curve))
    return [
        {"version": i, "eval/avg": float(score), "eval/se": 1.0, "reward/mean": float(reward)}
        for i, (score, reward) in enumerate(zip(scores, rewards, strict=True))
    ]


def simulated(curve: Callable[[np.random.Generator], np.ndarray], count: int, seed: int) -> list[list[Row]]:
    random = np.random.default_rng(seed)
    return [rows_of(curve(random), random) for _ in range(count)]


def verdict_rate(runs: Iterable[list[Row]], margin: float) -> float:
    """Share of runs that are called collapsed at their end."""
    return float(np.mean([collapse_onset(*evaluations(rows), margin=margin) is not None for rows in runs]))


def stopped_at(rows: list[Row], margin: float, early: int) -> int | None:
    """The version at which run.on_collapse=stop ends the run."""
    for count in range(1, len(rows) + 1):
        if rows[count - 1].get("eval/avg") is None:
            continue
        found = collapse(rows[:count], margin=margin, early=early)
        if found is not None and found.confirmed:
            return int(rows[count - 1]["version"])
    return None


def stop_rate(runs: Iterable[list[Row]], margin: float) -> float:
    return float(np.mean([stopped_at(rows, margin, early_steps(EVALUATIONS)) is not None for rows in runs]))


# --- recorded -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trace:
    """A recorded toy run. kept: the mean of its last two evaluations by its highest one."""

    name: str
    rows: list[Row]
    early: int
    kept: float

    @property
    def kind(self) -> str:
        return "collapsed" if self.kept < COLLAPSED else "healthy" if self.kept > HEALTHY else "between"


def traces() -> list[Trace]:
    return [_trace(run) for run in json.loads(gzip.decompress(TRACES.read_bytes()))]


def _trace(run: dict) -> Trace:
    by_version: dict[int, dict[str, float]] = {}
    for metric, (where, values) in run["curves"].items():
        versions = where if len(where) == len(values) != 2 else [where[0] + where[1] * i for i in range(len(values))]
        for version, value in zip(versions, values, strict=True):
            by_version.setdefault(version, {"version": version})[metric] = value
    rows = [by_version[version] for version in sorted(by_version)]
    scores = evaluations(rows)[1]
    name = f"{run['task']}, {run['arm']}, seed {run['seed']}"
    early = early_steps(run["num_updates"] // run["num_mini_batches"])
    return Trace(name, rows, early, float(np.mean(scores[-2:])) / max(scores))


def of_kind(kind: str) -> list[Trace]:
    return [trace for trace in traces() if trace.kind == kind]


def called_collapsed(trace: Trace) -> bool:
    return collapse(trace.rows, margin=MARGIN, early=trace.early) is not None


def stops(trace: Trace) -> bool:
    return stopped_at(trace.rows, MARGIN, trace.early) is not None


@dataclass(frozen=True)
class WarningRates:
    """before: of collapsed runs that have an onset, how many have this warning at or before it · lead: updates between
    the two in the median, None without any · false: of healthy runs, how many have it."""

    metric: str
    before: int
    collapsed: int
    lead: float | None
    false: int
    healthy: int


def warnings() -> list[WarningRates]:
    fallen = [(trace, onset) for trace in of_kind("collapsed") if (onset := _onset(trace)) is not None]
    healthy = of_kind("healthy")
    return [_warning(metric, fallen, healthy) for metric in BANDS]


def _onset(trace: Trace) -> int | None:
    return collapse_onset(*evaluations(trace.rows), margin=MARGIN)


def _warning(metric: str, fallen: list[tuple[Trace, int]], healthy: list[Trace]) -> WarningRates:
    leads = []
    for trace, onset in fallen:
        raised = alarm([row for row in trace.rows if row["version"] <= onset], metric, trace.early)
        if raised is not None:
            leads.append(onset - raised.version)
    false = sum(alarm(trace.rows, metric, trace.early) is not None for trace in healthy)
    return WarningRates(metric, len(leads), len(fallen), median(leads) if leads else None, false, len(healthy))


def share(flags: Iterable[bool]) -> str:
    flags = list(flags)
    return f"{sum(flags)} of {len(flags)}"


def main() -> None:
    nulls = {"plateau": plateau, "rise": rise, "dip that recovers": dip}
    print("| synthetic, 1000 runs of 40 evaluations | " + " | ".join(f"margin {m}" for m in (2, 3, 4, 6)) + " |")
    print("|---|---|---|---|---|")
    for name, curve in [*nulls.items(), *((f"falls by {d}", fall(d)) for d in (4, 6, 8, 12, 20))]:
        runs = simulated(curve, 1000, 0)
        print(f"| {name} | " + " | ".join(f"{verdict_rate(runs, m):.1%}" for m in (2, 3, 4, 6)) + " |")
    print("\n| synthetic, 200 runs: stopped at margin 4 | |\n|---|---|")
    for name, curve in [*nulls.items(), *((f"falls by {d}", fall(d)) for d in (8, 12, 20))]:
        print(f"| {name} | {stop_rate(simulated(curve, 200, 1), MARGIN):.1%} |")
    print("\n| recorded toy runs | called collapsed | stopped |\n|---|---|---|")
    for kind in ("collapsed", "between", "healthy"):
        runs = of_kind(kind)
        print(f"| {kind} | {share(map(called_collapsed, runs))} | {share(map(stops, runs))} |")
    print("\n| warning | before the onset | lead, updates | in healthy runs |\n|---|---|---|---|")
    for one in warnings():
        lead = "–" if one.lead is None else f"{one.lead:g}"
        print(f"| `{one.metric}` | {one.before} of {one.collapsed} | {lead} | {one.false} of {one.healthy} |")


if __name__ == "__main__":
    main()
