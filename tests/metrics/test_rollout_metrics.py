"""Rewards, lengths, repetition, entropy, rejection and totals of a rollout batch against loops and worked numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from random_batches import all_usable, random_batch

from minirl.metrics import length, reward
from minirl.metrics.rollout import rollout_metrics
from minirl.types import Rewards, RolloutBatch, TrainBatch, figures


def measured(batch: TrainBatch) -> dict[str, float]:
    return figures(rollout_metrics(batch, extreme_ratio=2.0))


def responses(rollouts: RolloutBatch) -> list[list[int]]:
    spans = zip(rollouts.cu_seqlens[:-1].tolist(), rollouts.cu_seqlens[1:].tolist(), strict=True)
    return [rollouts.tokens[i:j][rollouts.response_mask[i:j]].tolist() for i, j in spans]


def repeats(tokens: list[int]) -> float:
    grams = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
    return 1 - len(set(grams)) / len(grams)


@pytest.mark.parametrize("seed", range(5))
def test_against_loops(seed: int) -> None:
    batch = random_batch(seed, groups=12)
    rollouts, found = batch.rollouts, measured(batch)
    sampled = responses(rollouts)
    lengths = [len(tokens) for tokens in sampled]
    assert found["length/mean"] == pytest.approx(sum(lengths) / len(lengths))
    assert found["length/max"] == max(lengths)
    assert found["length/truncated"] == pytest.approx(rollouts.truncated.float().mean().item())
    repetition = [repeats(tokens) for tokens in sampled if len(tokens) >= 4]
    assert found["length/repetition"] == pytest.approx(sum(repetition) / len(repetition)) and sum(repetition) > 0
    assert found["tokens/response"] == sum(lengths)
    assert found["tokens/prompt"] == len(rollouts.tokens) - sum(lengths)
    assert found["rollout/nan_logprobs"] == (~rollouts.valid).sum().item() > 0
    graded = batch.rewards.values[batch.rewards.graded]
    assert found["reward/mean"] == pytest.approx(graded.mean().item())
    assert found["reward/std"] == pytest.approx(graded.std(correction=0).item())
    assert found["reward/verifier_errors"] == (~batch.rewards.graded).sum().item() > 0
    assert found["reward/advantage_abs"] == pytest.approx(batch.advantages.abs().mean().item())
    usable = rollouts.response_mask & rollouts.valid[rollouts.sequence_ids]
    assert found["entropy/mean"] == pytest.approx(batch.old.entropy[usable].mean().item())


def test_a_mask_that_rejects_a_quarter_reports_a_quarter() -> None:
    """The denominator is the tokens before rejection, prompt tokens left out."""
    batch = random_batch(0, groups=8)
    places = batch.rollouts.response_mask.nonzero().squeeze(1)
    places = places[: len(places) // 4 * 4]
    mask = torch.zeros_like(batch.rollouts.response_mask)
    mask[places] = True
    accepted = mask.clone()
    accepted[places[::4]] = False
    batch = replace(batch, rollouts=replace(batch.rollouts, response_mask=mask), accepted=accepted)
    assert measured(batch)["reject/fraction"] == 0.25
    assert measured(replace(batch, accepted=torch.zeros_like(mask)))["reject/fraction"] == 1.0


def test_mismatch_does_not_see_the_rejection() -> None:
    batch = random_batch(1)
    rejected = replace(batch, accepted=torch.zeros_like(batch.accepted), counted=torch.zeros_like(batch.counted))
    before, after = measured(batch), measured(rejected)
    assert {name for name in before if before[name] != after[name]} == {"reject/fraction"}


def test_groups_that_teach_nothing() -> None:
    """Groups of 3: none right, all right, mixed, all graded ones right, no reward at all, partial credit."""
    values = [[0, 0, 0], [1, 1, 1], [1, 0, 1], [1, 1, 0], [0, 0, 0], [0.4, 0.9, 0.1]]
    graded = [[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 0], [0, 0, 0], [1, 1, 1]]
    batch = random_batch(2, groups=6)
    rewards = Rewards(torch.tensor(values).float().flatten(), torch.tensor(graded).bool().flatten())
    found = measured(replace(batch, rewards=rewards))
    assert found["reward/solved_none"] == pytest.approx(2 / 5)
    assert found["reward/solved_all"] == pytest.approx(2 / 5)
    assert reward.correct(rewards).sum() == 7


def packed(sequences: list[list[int]]) -> RolloutBatch:
    """Responses without prompts."""
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    total, true = int(lengths.sum()), torch.ones(len(sequences), dtype=torch.bool)
    return RolloutBatch(
        tokens=torch.tensor([token for sequence in sequences for token in sequence]),
        cu_seqlens=torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
        response_mask=torch.ones(total, dtype=torch.bool),
        rollout_logprobs=torch.zeros(total),
        truncated=~true,
        valid=true,
        positions=torch.arange(len(sequences)),
        routes=None,
        group_size=1,
        version=0,
    )


def repetition(sequences: list[list[int]]) -> dict[str, float]:
    return length.repetition(packed(sequences)).values("repetition")


def test_repetition_of_worked_sequences() -> None:
    assert repetition([[33] * 40]) == {"repetition": pytest.approx(1 - 1 / 37)}  # "!!!!..." trips the flag
    assert repetition([list(range(40))]) == {"repetition": 0.0}
    assert repetition([[1, 2, 3, 4, 5] * 4]) == {"repetition": pytest.approx(1 - 5 / 17)}
    assert repetition([[1, 1, 1], [2]]) == {}  # too short to repeat four tokens
    assert repetition([[7] * 5, [1, 2, 3]]) == {"repetition": 0.5}


def test_the_same_four_tokens_in_two_responses_are_no_repetition() -> None:
    assert repetition([[1, 2, 3, 4], [1, 2, 3, 4]]) == {"repetition": 0.0}
    assert repetition([[1, 2], [3, 4], [1, 2, 3, 4, 1, 2]]) == {"repetition": 0.0}


def test_a_dense_model_has_no_routing_figures() -> None:
    batch = all_usable(random_batch(3))
    dense = replace(batch, rollouts=replace(batch.rollouts, routes=None), old=replace(batch.old, routes=None))
    assert any(name.startswith("routing/local_") for name in measured(batch))
    assert not any(name.startswith("routing/") for name in measured(dense))
