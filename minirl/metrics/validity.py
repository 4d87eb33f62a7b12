"""How well the first-order approximation holds that the method rests on (arXiv 2512.01374 §2.3).

It replaces the ratio of a whole response, exp(S) = prod_t (1 + delta_t), by 1 + sum_t delta_t, with S = sum_t log
ratio_t and delta_t = ratio_t - 1. Measured for the discrepancy (pi_old / mu_old), the staleness (pi_theta / pi_old)
and their product (pi_theta / mu_old).
"""

from __future__ import annotations

from minirl.metrics.log_ratio import CLAMP, LogRatio
from minirl.metrics.statistics import Estimators, Histogram, Mean, Quotient

SMALL = 0.1  # |S| up to here: second-order terms below half a percent


def log_ratio(seen: LogRatio) -> Histogram:
    """|S|, S = sum_t log ratio_t, nats per response: mean, median, 95 % quantile and maximum over responses.
    [arXiv 2512.01374 §2.3]"""
    return Histogram.of(seen.sums.abs(), quantiles=(0.5, 0.95))


def small(seen: LogRatio) -> Mean:
    """share of responses with |S| < 0.1.
    [arXiv 2512.01374 §2.3]"""
    return Mean.of(seen.sums.abs() < SMALL)


def gap(seen: LogRatio) -> Quotient:
    """mean |exp(S) - 1 - sum_t delta_t| / mean |sum_t delta_t| over responses, log ratios clamped to +-20: what the
    approximation drops, relative to what it keeps. Absent where nothing differs.
    [arXiv 2512.01374 §2.3]"""
    kept = seen.tokens.sums(seen.ratio_minus_one)
    exact = seen.sums.clamp(-CLAMP, CLAMP).expm1()
    return Quotient(float((exact - kept).abs().sum()), float(kept.abs().sum()))


def total_variation(seen: LogRatio) -> Mean:
    """m(|ratio_t - 1|) / 2: estimates the mean total variation distance per token from sampled tokens; an estimate,
    not a bound.
    [arXiv 2602.04879 Thm 3.2]"""
    return Mean.of(seen.ratio_minus_one.abs() / 2)


ESTIMATORS: Estimators[LogRatio] = {"log_ratio": log_ratio, "small": small, "gap": gap, "tv": total_variation}
