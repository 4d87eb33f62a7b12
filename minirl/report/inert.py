"""Switches that did nothing, found in what was measured: the one thing that a comparison must not pass over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from minirl.config import Anchor, GradientClip, GroupFilter, Level, Region, Routing, Truncated
from minirl.report.read import Arm, Sweep

ROUNDING = 1e-5  # mean |log pi_old - log mu|, nats: engine and trainer agree to rounding

Config = Mapping[str, Any]
Largest = Callable[[str], float | None]  # of a metric, over all rows of all runs of the arm; None: never recorded
BOUNDS = tuple(
    f"algo.is_weight.{factor}.{side}" for factor in ("staleness", "discrepancy", "product") for side in ("low", "high")
)


@dataclass(frozen=True, slots=True)
class Inert:
    """keys: what was set · switch: the same as text · evidence: how one sees that it did nothing · arms: where."""

    keys: tuple[str, ...]
    switch: str
    evidence: str
    arms: tuple[str, ...]


def inert_switches(sweep: Sweep) -> list[Inert]:
    """Every inert switch with the arms in which it was inert, in the order of RULES."""
    found: dict[tuple[tuple[str, ...], str, str], list[str]] = {}
    for rule in RULES:
        for arm in sweep.distinct_arms:
            if arm.config and any(run.curves for run in arm.runs):
                verdict = rule(arm.config, partial(largest, arm))
                if verdict is not None:
                    found.setdefault(verdict, []).append(arm.name)
    return [Inert(*verdict, arms=tuple(arms)) for verdict, arms in found.items()]


def largest(arm: Arm, metric: str) -> float | None:
    """The largest recorded value over all runs of the arm."""
    peaks = [float(run.curves[metric].values.max()) for run in arm.runs if metric in run.curves]
    return max(peaks, default=None)


Verdict = tuple[tuple[str, ...], str, str] | None


def _set(config: Config, *keys: str) -> str:
    return ", ".join(f"{key}={config[key]}" for key in keys)


def trust_region(config: Config, largest: Largest) -> Verdict:
    key = "algo.trust_region.kind"
    if config.get(key) in (None, Region.none) or largest("clip/fraction") != 0:
        return None
    first = config.get("num_mini_batches") == 1 and config.get("algo.trust_region.anchor") == Anchor.old
    why = " (with one update per batch the ratio to pi_old is 1)" if first else ""
    return (key,), _set(config, key), f"clip/fraction is 0 in every update{why}"


def weight_bounds(config: Config, largest: Largest) -> Verdict:
    bounds = tuple(key for key in BOUNDS if config.get(key) is not None)
    if not bounds or largest("is_weight/capped") != 0:
        return None
    return bounds, _set(config, *bounds), "is_weight/capped is 0 in every update: no weight reached a bound"


def rejection(config: Config, largest: Largest) -> Verdict:
    off = {
        "algo.reject.level": Level.none,
        "algo.reject.groups": GroupFilter.all,
        "algo.reject.truncated": Truncated.keep,
    }
    keys = tuple(key for key, value in off.items() if config.get(key) not in (None, value))
    if not keys or largest("reject/fraction") != 0:
        return None
    return keys, _set(config, *keys), "reject/fraction is 0 in every batch"


def replay(config: Config, largest: Largest) -> Verdict:
    key = "algo.routing"
    if config.get(key) == Routing.r2 and config.get("num_mini_batches") == 1:
        return (key,), _set(config, key), "num_mini_batches=1: the replayed routes are those that the update would take"
    if config.get(key) in (Routing.r2, Routing.r3) and largest("routing/replayed") == 0:
        return (key,), _set(config, key), "routing/replayed is 0 in every update"
    if config.get(key) == Routing.r3 and largest("routing/disagree_token_layer") == 0:
        return (
            (key,),
            _set(config, key),
            "routing/disagree_token_layer is 0: engine and trainer choose the same experts",
        )
    return None


def staleness_weight(config: Config, largest: Largest) -> Verdict:
    key = "algo.is_weight.staleness.level"
    if config.get(key) in (None, Level.none) or config.get("num_mini_batches") != 1:
        return None
    return (key,), _set(config, key), "num_mini_batches=1: pi_theta is pi_old in every update, the factor is 1"


def discrepancy_weight(config: Config, largest: Largest) -> Verdict:
    key, gap = "algo.is_weight.discrepancy.level", largest("mismatch/logprob_abs_diff")
    if config.get(key) in (None, Level.none) or gap is None or gap > ROUNDING:
        return None
    return (key,), _set(config, key), f"mismatch/logprob_abs_diff is at most {gap:.1e}: the factor is 1 to rounding"


def gradient_clip(config: Config, largest: Largest) -> Verdict:
    keys = ("train.optim.clip", "train.optim.max_norm")
    if config.get(keys[0]) != GradientClip.global_norm or largest("optim/clipped") != 0:
        return None
    return keys, _set(config, *keys), "optim/clipped is 0 in every update"


RULES = (trust_region, weight_bounds, rejection, replay, staleness_weight, discrepancy_weight, gradient_clip)
