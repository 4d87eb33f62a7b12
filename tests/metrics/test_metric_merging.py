"""However a batch is cut into micro-batches and ranks, its figures are those of the whole."""

from __future__ import annotations

import pickle
from functools import reduce

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_batches import loss_terms, random_batch, random_logprobs

from minirl.metrics.live import live_metrics
from minirl.metrics.rollout import rollout_metrics
from minirl.metrics.statistics import Histogram, Sum
from minirl.metrics.update import update_metrics
from minirl.types import Statistics, TrainBatch, figures, merge, select, token_index

GROUPS, SIZE = 5, 3


def rollout(batch: TrainBatch, logprobs: torch.Tensor) -> Statistics:
    found = rollout_metrics(batch, extreme_ratio=1.5)
    return found | live_metrics(batch, batch.old, extreme_ratio=1.5)


def update(batch: TrainBatch, logprobs: torch.Tensor) -> Statistics:
    return update_metrics(batch, logprobs, loss_terms(batch, logprobs), first=True)


def over(ranks: list[list[list[int]]], batch: TrainBatch, logprobs: torch.Tensor, measure: object) -> Statistics:
    """Merged over the micro-batches of each rank, sent between processes, and merged over ranks."""
    assert callable(measure)
    sent = []
    for micro_batches in ranks:
        parts = []
        for responses in map(torch.tensor, micro_batches):
            tokens = token_index(batch.rollouts.cu_seqlens, responses)
            parts.append(measure(select(batch, responses), logprobs[tokens]))
        sent.append(pickle.dumps(reduce(merge, parts)))
    return reduce(merge, map(pickle.loads, sent))


@st.composite
def cuts(draw: st.DrawFn, num: int) -> list[list[list[int]]]:
    """num items in any order, each given to a rank and there to a micro-batch."""
    order = draw(st.permutations(range(num)))
    places = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=num, max_size=num))
    ranks: dict[int, dict[int, list[int]]] = {}
    for item, (rank, micro_batch) in zip(order, places, strict=True):
        ranks.setdefault(rank, {}).setdefault(micro_batch, []).append(item)
    return [list(micro_batches.values()) for micro_batches in ranks.values()]


@given(st.integers(0, 10**6), cuts(GROUPS * SIZE))
@settings(deadline=None, max_examples=25)
def test_an_update_cut_anywhere_between_responses(seed: int, ranks: list[list[list[int]]]) -> None:
    batch = random_batch(seed, GROUPS, SIZE)
    logprobs = random_logprobs(batch, seed)
    whole, parts = update(batch, logprobs), over(ranks, batch, logprobs, update)
    assert figures(parts) == pytest.approx(figures(whole), rel=1e-9, abs=1e-12)


@given(st.integers(0, 10**6), cuts(GROUPS))
@settings(deadline=None, max_examples=25)
def test_a_rollout_batch_cut_anywhere_between_groups(seed: int, ranks: list[list[list[int]]]) -> None:
    batch = random_batch(seed, GROUPS, SIZE)
    spread = [[[g * SIZE + i for g in groups for i in range(SIZE)] for groups in rank] for rank in ranks]
    whole, parts = rollout(batch, batch.old.logprobs), over(spread, batch, batch.old.logprobs, rollout)
    assert figures(parts) == pytest.approx(figures(whole), rel=1e-9, abs=1e-12)


def test_a_rank_that_holds_a_copy_changes_totals_only() -> None:
    """Means, extremes, spreads and quantiles are not doubled by a second copy; only what is called a total is."""
    batch = random_batch(0, 10, SIZE)
    logprobs = random_logprobs(batch, 0)
    for once in (rollout(batch, logprobs), update(batch, logprobs)):
        twice = merge(once, once)
        totals = {name for name, statistic in once.items() if isinstance(statistic, Sum)}
        assert totals <= {"reward/verifier_errors", "tokens/response", "tokens/prompt", "rollout/nan_logprobs"}
        for name in once:
            factor = 2 if name in totals else 1
            expected = {key: factor * value for key, value in once[name].values(name).items()}
            assert twice[name].values(name) == pytest.approx(expected, rel=1e-12), name


def test_histograms_of_parts_add_up_exactly() -> None:
    batch = random_batch(1, GROUPS, SIZE)
    whole = rollout(batch, batch.old.logprobs)
    parts = over([[[0, 1, 2]], [list(range(3, 15))]], batch, batch.old.logprobs, rollout)
    found = [name for name, statistic in whole.items() if isinstance(statistic, Histogram)]
    assert len(found) == 3
    for name in found:
        left, right = whole[name], parts[name]
        assert isinstance(left, Histogram) and isinstance(right, Histogram) and left.counts == right.counts
