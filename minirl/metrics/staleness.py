"""How far the trainer has moved since the batch was frozen: d_t = log pi_theta(y_t) - log pi_old(y_t), per mini-batch.

At num_mini_batches=1 pi_old is the update pass itself, so d is exactly 0.
"""

from __future__ import annotations

from minirl.metrics.log_ratio import CLAMP, LogRatio
from minirl.metrics.statistics import Estimators, Max, Mean


def first(seen: LogRatio) -> Mean:
    """m(|d_t|) of the first mini-batch of a rollout batch, nats: no update lies between the two passes, so anything
    but ~0 is a difference between them (kernels, padding, live expert choices).
    [ours]"""
    return Mean.of(seen.values.abs())


def log_ratio_mean(seen: LogRatio) -> Mean:
    """m(d_t), nats per token: k1 of the staleness with the sign turned.
    [ours; formula of arXiv 2512.01374 §4.2]"""
    return Mean.of(seen.values)


def kl_k3(seen: LogRatio) -> Mean:
    """m(exp(d_t) - 1 - d_t), nats per token, never negative.
    [Schulman, "Approximating KL divergence"]"""
    return Mean.of(seen.ratio_minus_one - seen.values)


def ratio_max(seen: LogRatio) -> Max:
    """max over tokens of pi_theta(y_t) / pi_old(y_t).
    [arXiv 2512.01374 eq 7]"""
    return Max.of(seen.values.clamp(-CLAMP, CLAMP).exp())


ESTIMATORS: Estimators[LogRatio] = {"log_ratio_mean": log_ratio_mean, "kl_k3": kl_k3, "ratio_max": ratio_max}
FIRST: Estimators[LogRatio] = {"first": first}
