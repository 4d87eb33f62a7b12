"""Token weights by hand, and gradients that do not know how a batch was cut."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from algo_cases import METHODS, Draw, algo_config, algorithm, cut_gradient, draw, gradient, pack, prepared, spread
from torch import Tensor

from minirl.algo import aggregation
from minirl.algo.algorithm import PolicyGradient
from minirl.config import ConfigError
from minirl.types import TrainBatch, select, split

# lengths 1, 3 | 2, 4: B = 4, T = 10, P = 2, group lengths 4 and 6
LENGTHS = [1, 3, 2, 4]


def crafted() -> TrainBatch:
    zeros = torch.zeros(10, dtype=torch.float64)
    rewards = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    return pack(LENGTHS, rollout_logprobs=zeros - 1, old_logprobs=zeros - 1, rewards=rewards, group_size=2)


def coefficients(batch: TrainBatch, *overrides: str) -> list[float]:
    """a_it of the response tokens."""
    done = prepared(algorithm("minirl", *overrides), batch).coefficients
    assert done is not None and not done[~batch.rollouts.response_mask].any()
    return done[batch.rollouts.response_mask].tolist()


BY_HAND = {
    "seq_mean_token_sum": [1 / 4] * 10,
    "seq_mean_token_mean": [1 / 4] + [1 / 12] * 3 + [1 / 8] * 2 + [1 / 16] * 4,
    "token_mean": [1 / 10] * 10,
    "group_token_mean": [1 / 8] * 4 + [1 / 12] * 6,
    "token_sum_norm": [1 / 80] * 10,
}


def kind(name: str) -> list[str]:
    return [f"algo.aggregation.kind={name}"] + ["algo.aggregation.length=20"] * (name == "token_sum_norm")


@pytest.mark.parametrize("name", BY_HAND)
def test_coefficients_by_hand(name: str) -> None:
    assert coefficients(crafted(), *kind(name)) == pytest.approx(BY_HAND[name], rel=1e-15)
    assert coefficients(crafted(), *kind(name), "algo.aggregation.scale=3") == pytest.approx(
        [3 * weight for weight in BY_HAND[name]], rel=1e-15
    )


# the last token of the second response and all of the third are rejected
REJECTED = [1] + [1, 1, 0] + [0, 0] + [1] * 4
UNCOUNTED = {
    "seq_mean_token_sum": [1 / 3] * 10,
    "seq_mean_token_mean": [1 / 3] + [1 / 6] * 3 + [0] * 2 + [1 / 12] * 4,
    "token_mean": [1 / 7] * 10,
    "group_token_mean": [1 / 6] * 4 + [1 / 8] * 6,
    "token_sum_norm": [1 / 60] * 10,
}


@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize("counted", [True, False])
def test_denominators_follow_the_counted_mask(name: str, counted: bool) -> None:
    """B, T_i, T, P and group lengths shrink only where rejected tokens do not count."""
    batch = crafted()
    mu = batch.rollouts.rollout_logprobs
    rejected = spread(1.0 - torch.tensor(REJECTED, dtype=torch.float64), batch.rollouts.response_mask)
    old = replace(batch.old, logprobs=mu + rejected)
    rule = ["algo.reject.level=token", "algo.reject.high=2", f"algo.reject.counted={str(counted).lower()}"]
    table = BY_HAND if counted else UNCOUNTED
    expected = [weight * kept for weight, kept in zip(table[name], REJECTED, strict=True)]
    assert coefficients(replace(batch, old=old), *kind(name), *rule) == pytest.approx(expected, rel=1e-15)


def test_a_response_without_tokens_counts_nowhere() -> None:
    """Padding: no loss, no denominator, also when it does not fill a group."""
    batch = crafted()
    padded = pack(
        [*LENGTHS, 0],
        rollout_logprobs=torch.full((10,), -1.0, dtype=torch.float64),
        old_logprobs=torch.full((10,), -1.0, dtype=torch.float64),
        rewards=torch.zeros(5, dtype=torch.float64),
        group_size=2,
    )
    assert aggregation.counts(padded).tolist() == aggregation.counts(batch).tolist() == [4, 10, 2]
    for name in BY_HAND:
        algo = algorithm("minirl", *kind(name))
        done = algo.coefficients(padded, algo.counts(padded)).coefficients
        assert done is not None
        assert done[padded.rollouts.response_mask].tolist() == pytest.approx(BY_HAND[name], rel=1e-15)
        assert not done[~padded.rollouts.response_mask].any()


def test_a_constant_needs_its_length() -> None:
    with pytest.raises(ConfigError, match=r"algo\.aggregation\.length=null"):
        aggregation.build(replace(algo_config("dr_grpo").aggregation, length=None))


def test_length_normalisation_weighs_responses_equally() -> None:
    """Two responses, one A, lengths 1 and 4: equal total weight with it, weight proportional to length without."""
    for name, expected in (("minirl_length_norm", 1.0), ("minirl", 4.0)):
        done = prepared(algorithm(name), crafted()).coefficients
        assert done is not None
        ids = crafted().rollouts.sequence_ids
        assert float(done[ids == 3].sum() / done[ids == 0].sum()) == pytest.approx(expected, rel=1e-15)


# --- gradients do not see the cut ---------------------------------------------------------------------------------


def ranks(batch: TrainBatch, num_ranks: int) -> list[Tensor]:
    """Responses of each rank: whole groups, dealt unevenly (the first rank gets the rest)."""
    groups = torch.arange(len(batch)).view(-1, batch.rollouts.group_size)
    share = len(groups) // (num_ranks + 1)
    first = groups[: len(groups) - share * (num_ranks - 1)]
    return [first.flatten(), *(part.flatten() for part in groups[len(first) :].split(share))][:num_ranks]


def distributed_gradient(algo: PolicyGradient, sample: Draw, num_ranks: int, size: int) -> Tensor:
    """The sum over ranks of gradients accumulated over micro-batches of `size` responses, counts summed over ranks."""
    logprobs = sample.logprobs().detach()
    batch = replace(sample.batch, advantages=algo.advantage(sample.batch.rewards, sample.batch.rollouts.group_size))
    local = [algo.reject(select(batch, part)) for part in ranks(batch, num_ranks)]
    counts = torch.stack([algo.counts(part) for part in local]).sum(0)
    total = torch.zeros_like(logprobs)
    for part, responses in zip(local, ranks(batch, num_ranks), strict=True):
        tokens = torch.isin(batch.rollouts.sequence_ids, responses).nonzero().squeeze(1)
        shuffled = torch.randperm(len(part), generator=torch.Generator().manual_seed(0))
        pieces = [piece.sort().values for piece in shuffled.split(size)]
        total[tokens] += cut_gradient(algo, algo.coefficients(part, counts), logprobs[tokens], pieces)
    return total


def test_two_ranks_hold_different_numbers_of_tokens() -> None:
    batch = draw(8).batch
    lengths = [int(select(batch, part).rollouts.response_lengths.sum()) for part in ranks(batch, 2)]
    assert len(lengths) == 2 and max(lengths) > 1.2 * min(lengths)


@pytest.mark.parametrize("name", METHODS)
def test_gradient_is_independent_of_micro_batches_and_ranks(name: str) -> None:
    """Geo-RS, DAPO, Seq-MIS and all others: {1, 2, 3} ranks x micro-batches of {1, 7, all}."""
    algo, sample = algorithm(name), draw(8)
    expected = gradient(algo, prepared(algo, sample.batch), sample.logprobs())[0]
    assert expected.any()
    for num_ranks, size in product((1, 2, 3), (1, 7, 96)):
        if num_ranks * size != 96:
            found = distributed_gradient(algo, sample, num_ranks, size)
            assert float((found - expected).abs().max()) <= 1e-12 * float(expected.abs().max())


@pytest.mark.parametrize(
    ("name", "at_least"), [("geo_rs", 0.05), ("dapo", 0.01), ("seq_mis", 0.01), ("token_mean", 0.01), ("minirl", 0.0)]
)
def test_averaging_local_means_would_be_wrong(name: str, at_least: float) -> None:
    """The tests above can fail: denominators per micro-batch give another gradient, except for MiniRL's 1 / B."""
    algo = algorithm("minirl", *kind(name)) if name in BY_HAND else algorithm(name)
    if name == "seq_mis":  # counted rejects give a denominator that is the same everywhere; verl's do not
        algo = algorithm(name, "algo.reject.counted=false")
    sample = draw(8)
    logprobs, batch = sample.logprobs().detach(), prepared(algo, sample.batch)
    expected = gradient(algo, batch, logprobs)[0]
    local = torch.zeros_like(expected)
    pieces = torch.arange(len(batch)).split(8)
    for piece in pieces:
        part = select(batch, piece)
        part = algo.coefficients(part, algo.counts(part))
        tokens = torch.isin(batch.rollouts.sequence_ids, piece)
        local[tokens] += gradient(algo, part, logprobs[tokens])[0] / len(pieces)
    error = float((local - expected).norm() / expected.norm())
    assert error > at_least if at_least else error < 1e-12


@pytest.mark.parametrize(("n", "g"), list(product((1, 2, 4), repeat=2)))
@pytest.mark.parametrize("name", ["minirl", "minirl_length_norm", "dapo", "dr_grpo"])
def test_mini_batches_times_accumulation(n: int, g: int, name: str) -> None:
    """N mini-batches, each accumulated over g micro-batches: the sum is the closed form with N local denominators."""
    algo, sample = algorithm(name), draw(8)
    logprobs, whole = sample.logprobs().detach(), prepared(algo, sample.batch)
    terms = gradient(algo, whole, logprobs)[1]
    plain = terms.kept * terms.is_weight * terms.advantages * whole.accepted
    start, found, expected = 0, [], []
    for mini in split(whole, n):
        tokens = slice(start, start + len(mini.rollouts.tokens))
        start = tokens.stop
        mini = algo.coefficients(mini, algo.counts(mini))
        found.append(cut_gradient(algo, mini, logprobs[tokens], list(torch.arange(len(mini)).chunk(g))))
        lengths = mini.rollouts.response_lengths.double()
        per_token = lengths[mini.rollouts.sequence_ids]
        divisor = {
            "minirl": torch.full_like(per_token, len(mini)),
            "minirl_length_norm": len(mini) * per_token,
            "dapo": torch.full_like(per_token, float(mini.counted.sum())),
            "dr_grpo": torch.full_like(per_token, len(mini) * 12),
        }[name]
        expected.append(-plain[tokens] / divisor)
    assert torch.allclose(torch.cat(found), torch.cat(expected), rtol=1e-12, atol=0)


def test_a_constant_budget_is_minirl_divided_by_it() -> None:
    for sample in (draw(8), draw(21)):
        plain = algorithm("minirl")
        scaled = algorithm("minirl", "algo.aggregation.kind=token_sum_norm", "algo.aggregation.length=7")
        left, right = (gradient(a, prepared(a, sample.batch), sample.logprobs())[0] for a in (plain, scaled))
        assert torch.allclose(left, 7 * right, rtol=1e-13, atol=0)


def test_leave_one_out_is_a_constant_times_minirl() -> None:
    """G / (G - 1) = 8 / 7: the same arm up to the scale of its loss."""
    sample = draw(8)
    plain, other = algorithm("minirl"), algorithm("minirl", "algo.advantage=leave_one_out")
    left, right = (gradient(a, prepared(a, sample.batch), sample.logprobs())[0] for a in (plain, other))
    assert torch.allclose(right, 8 / 7 * left, rtol=1e-13, atol=0)


def test_supervised_fine_tuning_is_the_same_line() -> None:
    """A = 1, no weight, no region, token mean: the mean negative log-likelihood."""
    sample, algo = draw(8), algorithm("reinforce", "algo.aggregation.kind=token_mean")
    batch = replace(prepared(algo, sample.batch), advantages=torch.ones(len(sample.batch), dtype=torch.float64))
    loss = algo.loss(sample.logprobs(), batch, on_policy=True).loss
    assert loss.item() == pytest.approx(-sample.response_logprobs().mean().item(), rel=1e-13)


def test_loss_needs_coefficients() -> None:
    sample = draw(8)
    with pytest.raises(ValueError, match="coefficients"):
        algorithm("minirl").loss(sample.logprobs(), sample.batch, on_policy=False)
