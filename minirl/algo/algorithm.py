"""The one loss line, filled in with six choices.

    loss = - sum_i sum_t a_it * M_it * sg[w_it] * A_i * log pi_theta(y_it)              arXiv 2512.01374 eq 7

Pure functions: an algorithm has no state, never reduces over ranks and never logs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from minirl.algo import aggregation, is_weights, rejection, trust_regions
from minirl.algo.advantages import BASELINES, Baseline, advantages
from minirl.algo.aggregation import Aggregation
from minirl.algo.equations import ThreePolicies, broadcast
from minirl.algo.is_weights import IsWeight
from minirl.algo.rejection import Rejection
from minirl.algo.trust_regions import TrustRegion, would_clip
from minirl.config import AlgoConfig, Routing
from minirl.types import LossTerms, Rewards, TrainBatch


@dataclass(frozen=True)
class PolicyGradient:
    """Six choices: advantage, is_weight, trust_region, reject, aggregation, routing."""

    baseline: Baseline
    is_weight: IsWeight
    trust_region: TrustRegion
    rejection: Rejection
    aggregation: Aggregation
    routing: Routing

    def advantage(self, rewards: Rewards, group_size: int) -> Tensor:
        """[B] advantages of all graded responses, before any rejection; 0 for the others."""
        return advantages(rewards.values, rewards.graded, group_size, self.baseline)

    def reject(self, batch: TrainBatch) -> TrainBatch:
        """Fills `accepted` and `counted`, once per rollout batch: nothing here depends on pi_theta."""
        accepted, counted = self.rejection.masks(batch)
        return replace(batch, accepted=accepted, counted=counted)

    def counts(self, mini_batch: TrainBatch) -> Tensor:
        """float64 [3]: counted responses, tokens and groups here; to be summed over ranks."""
        return aggregation.counts(mini_batch)

    def coefficients(self, mini_batch: TrainBatch, counts: Tensor) -> TrainBatch:
        """Fills a_it of a whole mini-batch (0 where not accepted) from the counts of all ranks."""
        return replace(mini_batch, coefficients=self.aggregation(mini_batch, counts))

    def loss(self, logprobs: Tensor, micro_batch: TrainBatch, on_policy: bool) -> LossTerms:
        """- sum_t a_t M_t sg[w_t] A log pi_theta over whole responses; see `LossTerms` for the parts.

        on_policy (N = 1): pi_old is sg[pi_theta] of this very pass, so staleness is exactly 1.
        """
        if micro_batch.coefficients is None:
            raise ValueError("the micro-batch has no coefficients: call `coefficients` on its mini-batch first")
        rollouts, theta = micro_batch.rollouts, logprobs.detach()
        policies = ThreePolicies(
            logprobs=theta,
            old_logprobs=theta if on_policy else micro_batch.old.logprobs,
            rollout_logprobs=rollouts.rollout_logprobs,
            response_mask=rollouts.response_mask,
            cu_seqlens=rollouts.cu_seqlens,
        )
        advantage = torch.where(rollouts.response_mask, broadcast(micro_batch.advantages, rollouts.cu_seqlens), 0.0)
        weight, capped = self.is_weight(policies)
        kept = self.trust_region(policies, advantage)
        share = micro_batch.coefficients * kept * advantage
        # an overflowing weight of a token that does not teach must not turn 0 into NaN
        gradient = torch.where(share == 0, 0.0, share * weight)
        masked = (kept == 0) & rollouts.response_mask
        return LossTerms(
            loss=-(gradient * logprobs).sum(),
            kept=kept,
            is_weight=weight,
            capped=capped,
            would_clip=would_clip(policies.log_staleness, advantage),
            high=masked & (advantage > 0),
            low=masked & (advantage < 0),
            advantages=advantage,
            log_staleness=policies.log_staleness,
            log_discrepancy=policies.log_discrepancy,
        )


def build(cfg: AlgoConfig) -> PolicyGradient:
    """The algorithm of a configuration. Raises ConfigError where a choice lacks the number that it needs."""
    return PolicyGradient(
        baseline=BASELINES[cfg.advantage],
        is_weight=is_weights.build(cfg.is_weight),
        trust_region=trust_regions.build(cfg.trust_region),
        rejection=rejection.build(cfg.reject, cfg.routing, cfg.routing_missing),
        aggregation=aggregation.build(cfg.aggregation),
        routing=cfg.routing,
    )
