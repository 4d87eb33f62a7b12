"""Which metrics are drawn, and what is drawn of each arm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minirl.record import State
from minirl.report.curves import Band, Curve, band, batch_means, thinned, thinned_band
from minirl.report.figures import onset
from minirl.report.read import Arm, Run, Sweep, abreast

FLAT = 1e-6  # rounding of a constant, which an axis would blow up
MOST_POINTS, MOST_SEED_POINTS = 120, 80  # of a mean and of a single seed; more would not be seen
PER_UPDATE = ("staleness/", "is_weight/", "clip/", "optim/", "validity/log_ratio", "validity/small", "validity/gap")


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: of `metric`, under `title`; `note` says the unit and what to look for."""

    metric: str
    title: str
    note: str
    logarithmic: bool = False


EVALUATION = Panel("eval/avg", "Evaluation", "share of held-out problems solved (avg@k), one evaluator for all arms")
MAIN = (
    Panel("reward/mean", "Training reward", "mean over the engine's responses"),
    Panel("entropy/mean", "Entropy", "nats per token; a crash and a rise are both signs of trouble"),
    Panel("mismatch/kl_k3", "Train-inference mismatch, k3", "nats per token, with the arm's own routing", True),
    Panel("mismatch/kl_k1", "Train-inference mismatch, k1", "nats per token, the paper's estimator", True),
    Panel(
        "mismatch_live/kl_k3", "Mismatch on free routing, k3", "nats per token, comparable between all routings", True
    ),
    Panel(
        "routing/disagree_token_layer",
        "Routing disagreement",
        "share of (token, layer) with other experts, free routing",
    ),
    Panel("staleness/kl_k3", "Staleness, k3", "nats per token between pi_old and pi_theta", True),
    Panel("clip/fraction", "Clipped tokens", "share masked by the trust region"),
    Panel("clip/would_be", "Clipped tokens, if 0.2 / 0.27 applied", "share, whatever the arm itself does"),
    Panel("optim/grad_norm", "Gradient norm", "before clipping", True),
    Panel(
        "validity/gap", "First-order validity: gap", "relative error of the linear approximation; small is good", True
    ),
    Panel("validity/small", "First-order validity: small ratios", "share of responses with |log ratio| < 0.1"),
)
MORE = (
    Panel(
        "mismatch/seq_log_ratio_correct", "Log ratio of correct responses", "nats per response; falls before collapse"
    ),
    Panel(
        "mismatch/extreme_tokens",
        "Extreme tokens",
        "share with a ratio above metrics.extreme_ratio, or below its inverse",
        True,
    ),
    Panel("is_weight/ess", "Effective sample size", "share, of the importance weights"),
    Panel("is_weight/mean", "Importance weight", "mean over tokens"),
    Panel("is_weight/max", "Largest importance weight", "over the tokens of an update", True),
    Panel("is_weight/capped", "Bounded weights", "share of tokens whose weight a bound changed"),
    Panel("reject/fraction", "Rejected tokens", "share of the batch"),
    Panel("optim/clipped", "Updates with clipped gradient", "share"),
    Panel("length/mean", "Response length", "tokens"),
    Panel("length/truncated", "Truncated responses", "share"),
    Panel("length/repetition", "Repetition", "share of repeated 4-grams"),
    Panel("reward/solved_none", "Groups without a solution", "share; they teach nothing"),
    Panel("reward/solved_all", "Groups solved throughout", "share; they teach nothing"),
    Panel("staleness/ratio_max", "Largest staleness ratio", "pi_theta / pi_old over the tokens of an update", True),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One run: what is drawn of it, the version at which it stopped short of its plan, and the one from which it has
    collapsed (None: it did not)."""

    run: Run
    curve: Curve
    stopped: int | None
    onset: int | None


@dataclass(frozen=True, slots=True)
class Series:
    """One arm in one panel. index: the arm's place in the sweep, which gives colour, dashes, marker and letter."""

    index: int
    name: str
    lines: tuple[Line, ...]
    mean: Band | None


def series_of(sweep: Sweep, panel: Panel) -> list[Series]:
    """Every arm that recorded the metric. A mean is over runs with a result, those that stopped carried forward; over
    all runs where none has one yet."""
    drawn = []
    for index, arm in enumerate(sweep.distinct_arms):
        lines = [line for run in arm.runs if (line := _line(arm, run, panel)) is not None]
        if lines:
            drawn.append(Series(index, arm.name, tuple(lines), _mean(arm, panel)))
    return drawn


def is_flat(series: Sequence[Series]) -> bool:
    """All values of all runs are the same, to FLAT of their size: nothing to see."""
    values = np.concatenate([line.curve.values for one in series for line in one.lines])
    return not values.size or float(np.ptp(values)) <= FLAT * float(np.abs(values).max())


def averages_updates(panel: Panel, series: Sequence[Series]) -> bool:
    """Whether some curve is of means over the updates of a batch."""
    runs = (line.run for one in series for line in one.lines)
    return is_of_updates(panel) and any(int(run.config.get("num_mini_batches", 1)) > 1 for run in runs)


def is_of_updates(panel: Panel) -> bool:
    """Its metric has a value for every update, which off-policy saws within each batch."""
    return panel.metric.startswith(PER_UPDATE)


def _prepared(arm: Arm, curve: Curve, panel: Panel) -> Curve:
    num_mini_batches = int(arm.config.get("num_mini_batches", 1))
    return batch_means(curve, num_mini_batches) if is_of_updates(panel) else curve


def _line(arm: Arm, run: Run, panel: Panel) -> Line | None:
    recorded = run.curves.get(panel.metric)
    if recorded is None:
        return None
    stopped = run.version < run.horizon and run.state != State.running
    drawn = thinned(_prepared(arm, recorded, panel), MOST_SEED_POINTS)
    return Line(run, drawn, run.version if stopped else None, onset(run))


def _mean(arm: Arm, panel: Panel) -> Band | None:
    runs = arm.results or arm.runs
    curves = [_prepared(arm, curve, panel) for curve in abreast(runs, panel.metric)]
    whole = band(curves, logarithmic=panel.logarithmic)
    return None if whole is None else thinned_band(whole, MOST_POINTS)
