"""Micro-batches: all responses once, within the budget, at the least cost; and the layout of a forward."""

from itertools import combinations

import pytest
import torch
from policy_cases import rollouts

from minirl.policy.packing import FIXED_COST_TOKENS, micro_batches, padded
from minirl.types import select


def cost(parts, lengths):
    return sum(len(part) * max(int(lengths[part].max()) - 1, 1) + FIXED_COST_TOKENS for part in parts)


@pytest.mark.parametrize("max_tokens", [200, 600, 5000])
def test_the_cut_is_the_cheapest_one_of_the_sorted_responses(max_tokens):
    """Against every way to cut the sorted list."""
    lengths = torch.tensor([150, 20, 91, 90, 31, 30, 199, 22, 89, 150])
    ordered = lengths.argsort(stable=True)
    allowed = []
    for number in range(len(lengths)):
        for cuts in combinations(range(1, len(lengths)), number):
            parts = [ordered[a:b] for a, b in zip([0, *cuts], [*cuts, len(lengths)], strict=True)]
            if all(len(part) * (int(lengths[part].max()) - 1) <= max_tokens for part in parts):
                allowed.append(cost(parts, lengths))
    parts = micro_batches(lengths, max_tokens=max_tokens)
    assert cost(parts, lengths) == min(allowed)
    assert torch.equal(torch.cat(parts), ordered)


def test_a_response_beyond_the_budget_is_alone():
    parts = micro_batches(torch.tensor([5, 30, 6, 40]), max_tokens=20)
    assert [part.tolist() for part in parts] == [[0, 2], [1], [3]]


def test_short_responses_do_not_pay_for_a_long_one():
    """One long and 63 short: what is computed stays near the sum of the lengths (R34)."""
    lengths = torch.tensor([2000] + [20] * 63)
    parts = micro_batches(lengths, max_tokens=10_000)
    computed = sum(len(part) * (int(lengths[part].max()) - 1) for part in parts)
    assert computed < 1.05 * int(lengths.sum())


def test_no_responses_no_micro_batches():
    assert micro_batches(torch.zeros(0, dtype=torch.int64), max_tokens=10) == []


def test_the_layout_row_by_row():
    batch = rollouts(groups=2)
    layout = padded(batch)
    flat, predicted = layout.tokens.flatten(), []
    for row, (begin, end) in enumerate(zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True)):
        sequence, mask = batch.tokens[begin:end], batch.response_mask[begin:end]
        assert torch.equal(layout.tokens[row, : len(sequence) - 1], sequence[:-1])  # the last token is not fed
        predicted += [(row, place - 1, int(sequence[place])) for place in mask.nonzero().flatten().tolist()]
    time = layout.tokens.shape[1]
    assert time == int(batch.lengths.max()) - 1
    assert list(zip(layout.sources.tolist(), layout.targets.tolist(), strict=True)) == [
        (row * time + place, token) for row, place, token in predicted
    ]
    assert torch.equal(flat[layout.slots], batch.tokens[layout.fed])


def test_spread_and_collect_are_inverse_on_fed_tokens():
    batch = rollouts(groups=3, seed=2)
    layout = padded(batch)
    values = torch.randn(len(batch.tokens), 2, 3)
    back = layout.collect(layout.spread(values))
    assert torch.equal(back[layout.fed], values[layout.fed]) and not back[~layout.fed].any()
    assert layout.spread(values).shape[0] == layout.tokens.numel()


def test_a_micro_batch_of_nothing_is_one_token_that_predicts_nothing():
    layout = padded(select(rollouts(), torch.zeros(0, dtype=torch.int64)))
    assert layout.tokens.shape == (1, 1) and len(layout.sources) == len(layout.targets) == len(layout.fed) == 0


def test_a_sequence_without_a_prompt_is_refused():
    batch = rollouts()
    batch.response_mask[batch.cu_seqlens[1]] = True
    with pytest.raises(ValueError, match="prompts cannot be empty"):
        padded(batch)
