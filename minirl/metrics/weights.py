"""The importance weights as the loss uses them: detached and bounded, float64 [n], on the response tokens."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from minirl.metrics.statistics import Distribution, EffectiveSampleSize, Estimators, Max, Mean, Min, Moments


@dataclass(frozen=True, slots=True)
class Weights:
    """values [n]: final weight of each token · capped [n] bool: a bound changed it."""

    values: Tensor
    capped: Tensor


def mean(seen: Weights) -> Mean:
    """m(w_t): 1 where the policies agree; below 0.5 or above 2 is an alarm, below 1e-3 nothing is learned.
    [verl, rollout correction]"""
    return Mean.of(seen.values)


def std(seen: Weights) -> Moments:
    """standard deviation of w_t over tokens; above 1 is an alarm.
    [verl, rollout correction]"""
    return Moments.of(seen.values)


def largest(seen: Weights) -> Max:
    """max over tokens of w_t.
    [verl, rollout correction]"""
    return Max.of(seen.values)


def smallest(seen: Weights) -> Min:
    """min over tokens of w_t.
    [verl, rollout correction]"""
    return Min.of(seen.values)


def capped(seen: Weights) -> Mean:
    """share of tokens whose weight a bound has clamped or zeroed: m(1[w > C]) for TIS, m(1[w outside the band]) for
    IcePop. 0 throughout means that the bounds are inert.
    [arXiv 2512.01374 §4.2; IcePop blog]"""
    return Mean.of(seen.capped)


def ess(seen: Weights) -> EffectiveSampleSize:
    """1 / m((w / m(w))^2), the effective share of the sample, in (0, 1]; below 0.3 is an alarm.
    [Kong 1992; verl, rollout correction]"""
    return EffectiveSampleSize.of(seen.values)


def value(seen: Weights) -> Distribution:
    """the distribution of w_t over tokens, every metrics.histograms_every updates.
    [ours]"""
    return Distribution.of(seen.values, quantiles=())


ESTIMATORS: Estimators[Weights] = {
    "mean": mean,
    "std": std,
    "max": largest,
    "min": smallest,
    "capped": capped,
    "ess": ess,
    "value": value,
}
