"""All figures of one update, measured on a micro-batch and merged over micro-batches and ranks."""

from __future__ import annotations

from torch import Tensor

from minirl.metrics import clip, staleness, validity, weights
from minirl.metrics.log_ratio import LogRatio, ResponseTokens
from minirl.metrics.statistics import Family
from minirl.types import LossTerms, Statistics, TrainBatch

STALENESS = Family("staleness/", staleness.ESTIMATORS)
FIRST = Family("staleness/", staleness.FIRST)
WEIGHTS = Family("is_weight/", weights.ESTIMATORS)
CLIP = Family("clip/", clip.ESTIMATORS)
PRODUCT = Family("validity/", validity.ESTIMATORS)
STALENESS_VALIDITY = Family("validity/staleness_", validity.ESTIMATORS)
FAMILIES = (STALENESS, FIRST, WEIGHTS, CLIP, PRODUCT, STALENESS_VALIDITY)


def update_metrics(micro_batch: TrainBatch, logprobs: Tensor, terms: LossTerms, *, first: bool) -> Statistics:
    """logprobs [T]: log pi_theta of the pass that made `terms`. first: no update lies between this pass and pi_old.
    On all response tokens of valid responses, rejected or not."""
    rollouts = micro_batch.rollouts
    tokens = ResponseTokens.of(rollouts)
    at = tokens.positions
    trainer, sampler = logprobs.detach().double()[at], rollouts.rollout_logprobs.double()[at]
    stale = LogRatio(terms.log_staleness.double()[at], tokens)
    masks = clip.Clip(
        kept=terms.kept[at],
        high=terms.high[at],
        low=terms.low[at],
        would_be=terms.would_clip[at],
        advantages=terms.advantages[at],
        lost=sampler.exp() - trainer.exp(),
    )
    return {
        **STALENESS.measure(stale),
        **(FIRST.measure(stale) if first else {}),
        **WEIGHTS.measure(weights.Weights(terms.is_weight.double()[at], terms.capped[at])),
        **CLIP.measure(masks),
        **PRODUCT.measure(LogRatio(trainer - sampler, tokens)),
        **STALENESS_VALIDITY.measure(stale),
    }
