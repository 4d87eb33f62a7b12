"""Which tokens the trust region holds back. M_t in [0, 1] multiplies a token's gradient."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from minirl.metrics.statistics import Estimators, Mean

BAD_UPDATE = 0.5  # probability that the sampler gave a token and the trainer has taken from it


@dataclass(frozen=True, slots=True)
class Clip:
    """[n] per response token. kept: M_t · high / low: masked with A > 0 / with A < 0 · would_be: outside the 0.2 / 0.27
    ratio bounds against pi_old · advantages: A of its response · lost: mu_old(y_t) - pi_theta(y_t)."""

    kept: Tensor
    high: Tensor
    low: Tensor
    would_be: Tensor
    advantages: Tensor
    lost: Tensor


def fraction(seen: Clip) -> Mean:
    """m(1 - M_t).
    [arXiv 2512.01374 eq 7]"""
    return Mean.of(1 - seen.kept.double())


def high(seen: Clip) -> Mean:
    """share of tokens masked with A > 0 (the ratio rose above 1 + high).
    [arXiv 2512.01374 eq 7]"""
    return Mean.of(seen.high)


def low(seen: Clip) -> Mean:
    """share of tokens masked with A < 0 (the ratio fell below 1 - low, or rose above the dual clip).
    [arXiv 2512.01374 eq 7]"""
    return Mean.of(seen.low)


def would_be(seen: Clip) -> Mean:
    """share of tokens that the ratio bounds 0.2 / 0.27 against pi_old would mask, whatever the algorithm does.
    [arXiv 2512.01374 eq 7, §4.2]"""
    return Mean.of(seen.would_be)


def bad_updates(seen: Clip) -> Mean:
    """share of tokens with A < 0 and mu_old(y_t) - pi_theta(y_t) >= 0.5: rare (below 0.5 %) yet decisive.
    [arXiv 2602.04879 §5.3]"""
    return Mean.of((seen.advantages < 0) & (seen.lost >= BAD_UPDATE))


ESTIMATORS: Estimators[Clip] = {
    "fraction": fraction,
    "high": high,
    "low": low,
    "would_be": would_be,
    "bad_updates": bad_updates,
}
