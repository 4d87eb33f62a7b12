"""Random packed batches with unequal lengths, ties, invalid responses and missing routes, for the metric tests."""

from __future__ import annotations

from dataclasses import replace

import torch

from minirl.types import LossTerms, OldPolicy, Rewards, RolloutBatch, Routes, TrainBatch, expert_dtype

LAYERS, EXPERTS, K = (1, 2, 5), 6, 2


def random_routes(total: int, generator: torch.Generator) -> Routes:
    scores = torch.rand(total, len(LAYERS), EXPERTS, generator=generator)
    present = torch.rand(total, generator=generator) < 0.9
    return Routes(scores.topk(K).indices.to(expert_dtype(EXPERTS)), present, LAYERS, EXPERTS)


def random_batch(seed: int, groups: int = 4, group_size: int = 3) -> TrainBatch:
    """Responses of 1 to 9 tokens after prompts of 1 to 3; pi_old = mu_old times noise of a random scale per token."""
    generator = torch.Generator().manual_seed(seed)
    num = groups * group_size
    prompts = torch.randint(1, 4, (num,), generator=generator)
    lengths = prompts + torch.randint(1, 10, (num,), generator=generator)
    cu_seqlens = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    total = int(lengths.sum())
    place = torch.arange(total) - torch.repeat_interleave(cu_seqlens[:-1], lengths)
    mask = place >= torch.repeat_interleave(prompts, lengths)
    sampler = -torch.rand(total, generator=generator) * 2
    scale = 10 ** (torch.rand(total, generator=generator) * 4 - 4)
    trainer = sampler + torch.randn(total, generator=generator) * scale
    rollouts = RolloutBatch(
        tokens=torch.randint(0, 3, (total,), generator=generator),
        cu_seqlens=cu_seqlens,
        response_mask=mask,
        rollout_logprobs=sampler * mask,
        truncated=torch.rand(num, generator=generator) < 0.3,
        valid=torch.rand(num, generator=generator) < 0.8,
        positions=torch.arange(num) // group_size,
        routes=random_routes(total, generator),
        group_size=group_size,
        version=0,
    )
    graded = torch.rand(num, generator=generator) < 0.8
    return TrainBatch(
        rollouts=rollouts,
        rewards=Rewards((torch.rand(num, generator=generator) < 0.5).float() * graded, graded),
        advantages=torch.randn(num, generator=generator) * graded,
        old=OldPolicy(trainer * mask, torch.rand(total, generator=generator) * mask, random_routes(total, generator)),
        accepted=mask & (torch.rand(total, generator=generator) < 0.7),
        counted=mask,
        coefficients=mask / num,
    )


def random_logprobs(batch: TrainBatch, seed: int) -> torch.Tensor:
    """log pi_theta: pi_old times noise."""
    noise = torch.randn(batch.old.logprobs.shape[0], generator=torch.Generator().manual_seed(seed + 1000))
    return (batch.old.logprobs + 0.2 * noise) * batch.rollouts.response_mask


def loss_terms(batch: TrainBatch, logprobs: torch.Tensor) -> LossTerms:
    """The parts of the loss with token weights capped at 1.2 and the ratio mask 0.2 / 0.27, from their definitions."""
    rollouts, mask = batch.rollouts, batch.rollouts.response_mask
    advantages = batch.advantages[rollouts.sequence_ids] * mask
    staleness, product = logprobs - batch.old.logprobs, logprobs - rollouts.rollout_logprobs
    high = (advantages > 0) & (staleness.exp() > 1.27)
    low = (advantages < 0) & (staleness.exp() < 0.8)
    return LossTerms(
        loss=torch.tensor(0.0),
        kept=mask & ~(high | low),
        is_weight=product.exp().clamp(max=1.2) * mask,
        capped=(product.exp() > 1.2) & mask,
        would_clip=(high | low) & mask,
        high=high & mask,
        low=low & mask,
        advantages=advantages,
        log_staleness=staleness * mask,
        log_discrepancy=(batch.old.logprobs - rollouts.rollout_logprobs) * mask,
    )


def all_usable(batch: TrainBatch) -> TrainBatch:
    """The same batch with every response valid and graded."""
    true = torch.ones(len(batch), dtype=torch.bool)
    rewards = replace(batch.rewards, graded=true)
    return replace(batch, rollouts=replace(batch.rollouts, valid=true), rewards=rewards)
