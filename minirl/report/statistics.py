"""Inference over seeds: a t statistic, two one-sided tests, exact counts, Holm, and how many seeds would do.

Every test returns the two one-sided p-values of a claim: `p_for`, how surprising the data are if the claim is not
true, and `p_against`, how surprising they are if its opposite is not true. A verdict may go either way, so each
direction gets half of LEVEL: p = 2 min(p_for, p_against), Holm's correction over the claims of a sweep, and then
*reproduced* if the claimed side won, *contradicted* if the other did. The two are mirror images: exchanging the arms
of a `greater` claim exchanges the verdicts. For a single claim this is the same as: the whole two-sided 95 % interval
lies on one side of the margin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, bdtrc, betaincinv, stdtr, stdtrit

LEVEL = 0.05  # error rate of a sweep: the chance that any of its verdicts is wrong
POWER = 0.8  # chance with which the seeds that `seeds_needed` names would decide
SEEDS_FOR_INTERVAL = 3  # below: points only
SEEDS_FOR_VERDICT = 5  # below: an interval, and "undecided"
MOST_SEEDS = 100  # an estimate above this is no advice any more


@dataclass(frozen=True, slots=True)
class Location:
    """An estimate of a mean whose error follows Student's t: (estimate - mean) / error ~ t(freedom).

    num_seeds: pairs, or the seeds of the smaller arm where none are shared. deviation: the spread of one pair, so
    that error = deviation / sqrt(num_seeds).
    """

    estimate: float
    error: float
    freedom: float
    num_seeds: int

    @property
    def deviation(self) -> float:
        return self.error * sqrt(self.num_seeds)

    def interval(self, level: float) -> tuple[float, float]:
        """estimate -/+ t(1 - level / 2) error: covers the mean with probability 1 - level."""
        half = float(stdtrit(self.freedom, 1 - level / 2)) * self.error
        return self.estimate - half, self.estimate + half

    def p_above(self, bound: float) -> float:
        """P(T >= t) with t = (estimate - bound) / error: small where the mean is surely above `bound`."""
        if self.error == 0:  # all seeds agree to the last bit
            return 0.0 if self.estimate > bound else 1.0
        return float(stdtr(self.freedom, (bound - self.estimate) / self.error))

    def p_below(self, bound: float) -> float:
        """P(T <= t): small where the mean is surely below `bound`."""
        return Location(-self.estimate, self.error, self.freedom, self.num_seeds).p_above(-bound)


def location(values: ArrayLike) -> Location:
    """Mean and standard error s / sqrt(n) of n >= 2 independent values, n - 1 degrees of freedom."""
    array = np.asarray(values, dtype=np.float64)
    return Location(float(array.mean()), float(array.std(ddof=1)) / sqrt(array.size), array.size - 1, array.size)


def difference_of_means(left: ArrayLike, right: ArrayLike) -> Location:
    """mean(left) - mean(right) of unpaired values (Welch): error^2 = v_l + v_r with v = s^2 / n,
    freedom = (v_l + v_r)^2 / (v_l^2 / (n_l - 1) + v_r^2 / (n_r - 1)) (Satterthwaite)."""
    first, second = location(left), location(right)
    parts = first.error**2, second.error**2
    if sum(parts) == 0:
        freedom = float(min(first.freedom, second.freedom))
    else:
        freedom = sum(parts) ** 2 / (parts[0] ** 2 / first.freedom + parts[1] ** 2 / second.freedom)
    num_seeds = min(first.num_seeds, second.num_seeds)
    return Location(first.estimate - second.estimate, sqrt(sum(parts)), freedom, num_seeds)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The two one-sided p-values of a claim (see the module's docstring)."""

    p_for: float
    p_against: float

    @property
    def p(self) -> float:
        """Two chances to speak, so twice the smaller one."""
        return min(1.0, 2 * min(self.p_for, self.p_against))

    def opposite(self) -> Evidence:
        return Evidence(self.p_against, self.p_for)


def above(mean: Location, margin: float) -> Evidence:
    """Claim: the mean is above `margin`. Its opposite: it is below. Both ends of one two-sided t test."""
    return Evidence(mean.p_above(margin), mean.p_below(margin))


def within(mean: Location, margin: float) -> Evidence:
    """Claim: |mean| < margin, by two one-sided tests (TOST): the larger of the two p-values.

    Its opposite: the mean is above margin or below -margin; two ways to be so, hence twice the smaller one.
    """
    inside = max(mean.p_above(-margin), mean.p_below(margin))
    outside = min(mean.p_above(margin), mean.p_below(-margin))
    return Evidence(inside, min(1.0, 2 * outside))


def jointly(parts: Sequence[Evidence]) -> Evidence:
    """Claim: all of `parts` hold; each must be shown, so the largest p_for (intersection-union test).

    Its opposite: at least one fails; any of k may be the one, so k times the smallest p_against (Bonferroni).
    """
    return Evidence(max(part.p_for for part in parts), min(1.0, len(parts) * min(part.p_against for part in parts)))


def rate_above(count: int, total: int, rate: float) -> Evidence:
    """Claim: an event of which `count` in `total` were seen has a probability above `rate`: exact binomial tails."""
    upper = 1.0 if count == 0 else float(bdtrc(count - 1, total, rate))
    return Evidence(upper, float(bdtr(count, total, rate)))


def rate_above_reference(count: int, total: int, reference: int, reference_total: int) -> Evidence:
    """Claim: the first of two binomial counts has the higher probability: exact tails given the sum of the counts.

    Given count + reference = k, the first count is hypergeometric under equal probabilities (Fisher). Seeds shared
    by both arms make them more alike than that, which only makes the test more cautious.
    """
    both, everything = count + reference, total + reference_total

    def tail(counts: range) -> float:
        return sum(comb(total, c) * comb(reference_total, both - c) for c in counts) / comb(everything, both)

    least, most = max(0, both - reference_total), min(total, both)
    return Evidence(tail(range(count, most + 1)), tail(range(least, count + 1)))


def rate_interval(count: int, total: int, level: float) -> tuple[float, float]:
    """Clopper-Pearson: the rates that the exact binomial tests do not reject at level / 2 each."""
    low = 0.0 if count == 0 else float(betaincinv(count, total - count + 1, level / 2))
    high = 1.0 if count == total else float(betaincinv(count + 1, total - count, 1 - level / 2))
    return low, high


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: with p sorted ascending, max over j <= i of (m - j + 1) p_j, at most 1 (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def holm_level(p_values: Sequence[float], index: int) -> float:
    """The level that Holm gives to this claim: LEVEL / (m - rank), rank counted from 0."""
    rank = sum(other < p_values[index] for other in p_values)
    return LEVEL / (len(p_values) - rank)


def seeds_needed(distance: float, deviation: float, level: float) -> int | None:
    """The smallest n >= 5 with (t(1 - level / 2) + t(POWER)) deviation / sqrt(n) <= distance, both at n - 1 degrees.

    distance: from the estimate to the bound that must be cleared. As uncertain as the spread that it starts from, so
    a hint for planning and no promise. None: more than MOST_SEEDS.
    """

    def decides(num_seeds: int) -> bool:
        reach = stdtrit(num_seeds - 1, 1 - level / 2) + stdtrit(num_seeds - 1, POWER)
        return float(reach) * deviation <= distance * sqrt(num_seeds)

    return _first(decides) if distance > 0 else None


def seeds_needed_to_count(evidence: Callable[[int], Evidence], level: float) -> int | None:
    """The smallest n >= 5 at which the same rates, seen in n seeds (`evidence(n)`), would be decisive."""
    return _first(lambda num_seeds: evidence(num_seeds).p <= level)


def _first(decides: Callable[[int], bool]) -> int | None:
    return next((n for n in range(SEEDS_FOR_VERDICT, MOST_SEEDS + 1) if decides(n)), None)
