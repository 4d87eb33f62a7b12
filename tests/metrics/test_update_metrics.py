"""Staleness, weights, clipping and validity of an update against loops over Python floats."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from random_batches import loss_terms, random_batch, random_logprobs

from minirl.metrics.update import update_metrics
from minirl.types import figures


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("seed", range(4))
def test_against_loops(seed: int) -> None:
    batch = random_batch(seed, groups=12)
    logprobs = random_logprobs(batch, seed)
    terms = loss_terms(batch, logprobs)
    found = figures(update_metrics(batch, logprobs, terms, first=False))
    rollouts = batch.rollouts
    usable = (rollouts.response_mask & rollouts.valid[rollouts.sequence_ids]).nonzero().squeeze(1).tolist()
    assert 0 < len(usable) < int(rollouts.response_mask.sum())
    stale = [float(terms.log_staleness[t]) for t in usable]
    product = [float(logprobs[t]) - float(rollouts.rollout_logprobs[t]) for t in usable]
    weights = [float(terms.is_weight[t]) for t in usable]
    signs = [float(terms.advantages[t]) for t in usable]
    fell = [math.exp(float(rollouts.rollout_logprobs[t])) - math.exp(float(logprobs[t])) for t in usable]
    expected = {
        "staleness/log_ratio_mean": mean(stale),
        "staleness/kl_k3": mean([math.exp(d) - 1 - d for d in stale]),
        "staleness/ratio_max": math.exp(max(stale)),
        "is_weight/mean": mean(weights),
        "is_weight/std": math.sqrt(mean([w * w for w in weights]) - mean(weights) ** 2),
        "is_weight/max": max(weights),
        "is_weight/min": min(weights),
        "is_weight/capped": mean([math.exp(d) > 1.2 for d in product]),
        "is_weight/ess": 1 / mean([(w / mean(weights)) ** 2 for w in weights]),
        "clip/high": mean([a > 0 and math.exp(d) > 1.27 for a, d in zip(signs, stale, strict=True)]),
        "clip/low": mean([a < 0 and math.exp(d) < 0.8 for a, d in zip(signs, stale, strict=True)]),
        "clip/bad_updates": mean([a < 0 and d >= 0.5 for a, d in zip(signs, fell, strict=True)]),
        "validity/tv": mean([abs(math.exp(d) - 1) / 2 for d in product]),
        "validity/staleness_tv": mean([abs(math.exp(d) - 1) / 2 for d in stale]),
    }
    assert found["is_weight/capped"] > 0 and found["clip/high"] > 0 and found["clip/low"] > 0
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-6), name
    assert found["clip/fraction"] == pytest.approx(found["clip/high"] + found["clip/low"])
    assert found["clip/would_be"] == pytest.approx(found["clip/fraction"])
    owners = [int(rollouts.sequence_ids[t]) for t in usable]
    for prefix, ratios in (("validity/", product), ("validity/staleness_", stale)):
        sums = dict.fromkeys(owners, 0.0)
        linear = dict.fromkeys(owners, 0.0)
        for i, d in zip(owners, ratios, strict=True):
            sums[i] += d
            linear[i] += math.exp(d) - 1
        gap = sum(abs(math.exp(sums[i]) - 1 - linear[i]) for i in sums) / sum(map(abs, linear.values()))
        assert found[f"{prefix}gap"] == pytest.approx(gap, rel=1e-6)
        assert found[f"{prefix}small"] == pytest.approx(mean([abs(s) < 0.1 for s in sums.values()]))
        assert found[f"{prefix}log_ratio"] == pytest.approx(mean([abs(s) for s in sums.values()]))
        assert found[f"{prefix}log_ratio_max"] == pytest.approx(max(map(abs, sums.values())))


def test_first_is_logged_for_the_first_mini_batch_only_and_sees_any_difference() -> None:
    batch = random_batch(0)
    same = batch.old.logprobs
    later = update_metrics(batch, same, loss_terms(batch, same), first=False)
    first = update_metrics(batch, same, loss_terms(batch, same), first=True)
    assert "staleness/first" not in later and figures(first)["staleness/first"] == 0.0
    # differences of both signs that cancel in the mean are still differences
    shifted = same + 0.1 * torch.tensor([1.0, -1.0]).repeat(len(same))[: len(same)] * batch.rollouts.response_mask
    found = figures(update_metrics(batch, shifted, loss_terms(batch, shifted), first=True))
    assert found["staleness/first"] == pytest.approx(0.1, rel=1e-4)
    assert abs(found["staleness/log_ratio_mean"]) < 0.05


def test_a_soft_trust_region_counts_in_parts() -> None:
    batch = random_batch(1)
    terms = replace(loss_terms(batch, batch.old.logprobs), kept=torch.full_like(batch.old.logprobs, 0.75))
    assert figures(update_metrics(batch, batch.old.logprobs, terms, first=False))["clip/fraction"] == 0.25


def test_bad_updates_need_a_lost_half_and_a_negative_advantage() -> None:
    batch = random_batch(2)
    mask = batch.rollouts.response_mask
    rollouts = replace(batch.rollouts, rollout_logprobs=torch.full((len(mask),), 0.9).log() * mask)
    for advantage, probability, share in ((-1.0, 0.3, 1.0), (1.0, 0.3, 0.0), (-1.0, 0.5, 0.0)):
        moved = replace(batch, rollouts=rollouts, advantages=torch.full((len(batch),), advantage))
        logprobs = torch.full((len(mask),), probability).log() * mask
        found = figures(update_metrics(moved, logprobs, loss_terms(moved, logprobs), first=False))
        assert found["clip/bad_updates"] == share


def test_the_figures_carry_no_gradient() -> None:
    batch = random_batch(3)
    logprobs = batch.old.logprobs.clone().requires_grad_()
    for statistic in update_metrics(batch, logprobs, loss_terms(batch, batch.old.logprobs), first=True).values():
        assert all(isinstance(value, float) for value in statistic.values("x").values())
