"""Mismatch and validity against loops over Python floats, against enumeration, and on identical policies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from random_batches import all_usable, random_batch

from minirl.metrics.rollout import rollout_metrics
from minirl.types import OldPolicy, TrainBatch, figures

TAU = 1.5


def measured(batch: TrainBatch) -> dict[str, float]:
    return figures(rollout_metrics(batch, extreme_ratio=TAU))


def pairs(batch: TrainBatch) -> list[tuple[int, list[tuple[float, float]]]]:
    """Of each valid response: its index, and (log pi_old, log mu_old) of its sampled tokens."""
    rollouts, found = batch.rollouts, []
    for i in range(len(batch)):
        places = range(int(rollouts.cu_seqlens[i]), int(rollouts.cu_seqlens[i + 1]))
        both = [
            (float(batch.old.logprobs[t]), float(rollouts.rollout_logprobs[t]))
            for t in places
            if rollouts.response_mask[t]
        ]
        if rollouts.valid[i]:
            found.append((i, both))
    return found


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


Responses = list[list[tuple[float, float]]]
TOKENS: dict[str, Callable[[float, float], float]] = {
    "mismatch/kl_k1": lambda p, q: q - p,
    "mismatch/kl_k3": lambda p, q: math.exp(p - q) - 1 - (p - q),
    "mismatch/logprob_abs_diff": lambda p, q: abs(p - q),
    "mismatch/extreme_tokens": lambda p, q: max(math.exp(p - q), math.exp(q - p)) > TAU,
    "mismatch/chi2": lambda p, q: math.exp(p - q) ** 2 - 1,
    "validity/discrepancy_tv": lambda p, q: abs(math.exp(p - q) - 1) / 2,
}
SEQUENCES: dict[str, Callable[[list[tuple[float, float]]], float]] = {
    "mismatch/prob_diff_mean": lambda y: mean([abs(math.exp(p) - math.exp(q)) for p, q in y]),
    "mismatch/prob_diff_max": lambda y: max(abs(math.exp(p) - math.exp(q)) for p, q in y),
    "mismatch/ppl_trainer": lambda y: math.exp(-mean([p for p, _ in y])),
    "mismatch/ppl_sampler": lambda y: math.exp(-mean([q for _, q in y])),
    "mismatch/ppl_ratio": lambda y: math.exp(mean([q - p for p, q in y])),
    "mismatch/log_ppl_diff": lambda y: mean([q - p for p, q in y]),
    "mismatch/log_ppl_abs_diff": lambda y: abs(mean([q - p for p, q in y])),
    "mismatch/chi2_seq": lambda y: math.exp(2 * sum(p - q for p, q in y)) - 1,
    "validity/discrepancy_log_ratio": lambda y: abs(sum(p - q for p, q in y)),
    "validity/discrepancy_small": lambda y: abs(sum(p - q for p, q in y)) < 0.1,
}


@pytest.mark.parametrize("seed", range(4))
def test_against_loops(seed: int) -> None:
    batch = random_batch(seed)
    found, kept = measured(batch), pairs(batch)
    assert 0 < len(kept) < len(batch)  # the batch has invalid responses: they must not count
    tokens = [pair for _, y in kept for pair in y]
    for name, f in TOKENS.items():
        assert found[name] == pytest.approx(mean([f(p, q) for p, q in tokens]), rel=1e-9), name
    for name, f in SEQUENCES.items():
        assert found[name] == pytest.approx(mean([f(y) for _, y in kept]), rel=1e-9), name
    differences = [mean([q - p for p, q in y]) for _, y in kept]
    assert found["mismatch/log_ppl_diff_max"] == pytest.approx(max(differences))
    assert found["mismatch/log_ppl_diff_min"] == pytest.approx(min(differences))
    assert found["mismatch/logprob_abs_diff_max"] == max(abs(p - q) for p, q in tokens)
    exact = [math.exp(sum(p - q for p, q in y)) - 1 for _, y in kept]
    first_order = [sum(math.exp(p - q) - 1 for p, q in y) for _, y in kept]
    gap = sum(abs(a - b) for a, b in zip(exact, first_order, strict=True)) / sum(map(abs, first_order))
    assert found["validity/discrepancy_gap"] == pytest.approx(gap, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_log_ratio_of_correct_and_of_failed_responses(seed: int) -> None:
    batch = random_batch(seed, groups=8)
    sums = {i: sum(p - q for p, q in y) for i, y in pairs(batch)}
    graded = {i: float(batch.rewards.values[i]) for i in sums if batch.rewards.graded[i]}
    assert set(graded.values()) == {0.0, 1.0} and len(graded) < len(sums)  # ungraded is neither
    found = measured(batch)
    for name, reward in (("correct", 1.0), ("failed", 0.0)):
        expected = mean([sums[i] for i in graded if graded[i] == reward])
        assert found[f"mismatch/seq_log_ratio_{name}"] == pytest.approx(expected, rel=1e-9)


def test_quantiles_against_the_sorted_values() -> None:
    batch = all_usable(random_batch(7, groups=40))
    found = measured(batch)
    tokens = [abs(p - q) for _, y in pairs(batch) for p, q in y]
    sums = [abs(sum(p - q for p, q in y)) for _, y in pairs(batch)]
    for values, name in ((tokens, "mismatch/logprob_abs_diff"), (sums, "validity/discrepancy_log_ratio")):
        for share in (0.5, 0.95, 0.99):
            if f"{name}_p{100 * share:g}" in found:
                expected = float(np.quantile(values, share, method="inverted_cdf"))
                assert found[f"{name}_p{100 * share:g}"] == pytest.approx(expected, rel=0.08)
    assert {"mismatch/logprob_abs_diff_p99", "validity/discrepancy_log_ratio_p50"} < set(found)


def replaced(batch: TrainBatch, trainer: torch.Tensor, sampler: torch.Tensor) -> TrainBatch:
    """The batch with these logprobs at its response tokens."""
    mask = batch.rollouts.response_mask
    old = OldPolicy(torch.zeros(len(mask), dtype=trainer.dtype).masked_scatter(mask, trainer), batch.old.entropy, None)
    logprobs = torch.zeros(len(mask), dtype=sampler.dtype).masked_scatter(mask, sampler)
    return replace(batch, old=old, rollouts=replace(batch.rollouts, rollout_logprobs=logprobs, routes=None))


def test_both_kl_estimators_are_the_kl_from_mu_to_pi_on_tokens_in_mu_proportions() -> None:
    """Sign and direction: with y ~ mu, both estimate KL(mu || pi), and not KL(pi || mu)."""
    batch = all_usable(random_batch(1, groups=6))
    num = int(batch.rollouts.response_mask.sum()) // 4 * 4
    mu, pi = np.array([0.5, 0.25, 0.25]), np.array([0.2, 0.3, 0.5])
    words = torch.tensor([0, 0, 1, 2] * (num // 4))  # word counts in exactly mu's proportions
    mask = batch.rollouts.response_mask & (batch.rollouts.response_mask.cumsum(0) <= num)
    batch = replace(batch, rollouts=replace(batch.rollouts, response_mask=mask))
    found = measured(replaced(batch, torch.tensor(pi).log()[words], torch.tensor(mu).log()[words]))
    kl = float((mu * np.log(mu / pi)).sum())
    assert kl != pytest.approx(float((pi * np.log(pi / mu)).sum()), rel=0.01)
    assert found["mismatch/kl_k1"] == pytest.approx(kl) and found["mismatch/kl_k3"] == pytest.approx(kl)
    assert found["mismatch/chi2"] == pytest.approx(float((pi**2 / mu).sum() - 1))
    assert found["validity/discrepancy_tv"] == pytest.approx(float(np.abs(mu - pi).sum() / 2))


@pytest.mark.parametrize("seed", range(4))
def test_k3_is_never_negative_and_k1_changes_sign_with_the_policies(seed: int) -> None:
    batch = random_batch(seed)
    mask = batch.rollouts.response_mask
    trainer, sampler = batch.old.logprobs[mask], batch.rollouts.rollout_logprobs[mask]
    there, back = measured(replaced(batch, trainer, sampler)), measured(replaced(batch, sampler, trainer))
    assert there["mismatch/kl_k1"] == pytest.approx(-back["mismatch/kl_k1"]) != 0
    assert there["mismatch/kl_k3"] > 0 and back["mismatch/kl_k3"] > 0


def test_k3_keeps_its_digits_for_tiny_gaps() -> None:
    """exp(d) - 1 - d with d = 1e-6 is 5e-13: lost in float32, and in a plain float64 exp(d) - 1 to four digits."""
    batch = all_usable(random_batch(2))
    num = int(batch.rollouts.response_mask.sum())
    found = measured(replaced(batch, torch.full((num,), -1.0, dtype=torch.float64) + 1e-6, torch.full((num,), -1.0)))
    assert found["mismatch/kl_k3"] == pytest.approx(5e-13, rel=1e-3)


ZERO = ("kl_k1", "kl_k3", "logprob_abs_diff", "logprob_abs_diff_p99", "extreme_tokens", "prob_diff_max", "chi2")
ONE = ("mismatch/ppl_ratio", "validity/discrepancy_small")


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_identical_policies_read_zero_at_any_temperature(temperature: float) -> None:
    """The same logits on both sides, one of them in float64, each divided by the temperature before its softmax."""
    batch = all_usable(random_batch(3, groups=8))
    num = int(batch.rollouts.response_mask.sum())
    logits = torch.randn(num, 11, generator=torch.Generator().manual_seed(0)) * 3
    words = torch.randint(0, 11, (num, 1), generator=torch.Generator().manual_seed(1))

    def sampled(logits: torch.Tensor, divisor: float) -> torch.Tensor:
        return (logits / divisor).log_softmax(-1).gather(1, words)[:, 0].float()

    found = measured(replaced(batch, sampled(logits.double(), temperature), sampled(logits, temperature)))
    assert all(abs(found[f"mismatch/{name}"]) < 1e-5 for name in ZERO)
    assert all(found[name] == pytest.approx(1.0, abs=1e-5) for name in ONE)
    unscaled = measured(replaced(batch, sampled(logits, 1.0), sampled(logits, temperature)))
    assert temperature == 1.0 or unscaled["mismatch/kl_k3"] > 1e-3  # the fault it must be able to show


def test_bit_equal_policies_have_no_gap_and_no_quotient_to_report() -> None:
    batch = random_batch(4)
    logprobs = batch.rollouts.rollout_logprobs[batch.rollouts.response_mask]
    found = measured(replaced(batch, logprobs, logprobs))
    assert all(found[f"mismatch/{name}"] == 0 for name in ZERO) and "validity/discrepancy_gap" not in found


def test_the_gap_is_first_order_in_the_distance() -> None:
    """exp(S) - 1 - sum delta is second order, so relative to sum delta it shrinks tenfold with the policies' gap."""
    batch = all_usable(random_batch(5, groups=10))
    sampler = batch.rollouts.rollout_logprobs[batch.rollouts.response_mask].double()
    noise = torch.rand(len(sampler), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gaps = [
        measured(replaced(batch, sampler + size * noise, sampler))["validity/discrepancy_gap"] for size in (1e-2, 1e-3)
    ]
    assert gaps[0] / gaps[1] == pytest.approx(10, rel=0.05)


def test_absurd_ratios_stay_numbers() -> None:
    batch = all_usable(random_batch(6))
    num = int(batch.rollouts.response_mask.sum())
    found = measured(replaced(batch, torch.full((num,), -1.0), torch.full((num,), -2000.0)))
    assert all(math.isfinite(value) for value in found.values())


def test_no_valid_response_leaves_the_figures_out() -> None:
    batch = random_batch(8)
    batch = replace(batch, rollouts=replace(batch.rollouts, valid=torch.zeros(len(batch), dtype=torch.bool)))
    found = measured(batch)
    assert found["rollout/nan_logprobs"] == len(batch) and "reward/mean" in found
    assert not any(name.startswith(("mismatch/", "entropy/", "validity/")) for name in found)
