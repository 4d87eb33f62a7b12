"""Packing: what is selected, split and merged stays aligned, whatever fields a stage has."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minirl.types import (
    PER_RESPONSE,
    PER_TOKEN,
    OldPolicy,
    Rewards,
    RolloutBatch,
    Routes,
    TrainBatch,
    expert_dtype,
    select,
    split,
    token_index,
)


def numbered(prompts: list[int], responses: list[int], group_size: int = 1) -> TrainBatch:
    """A batch in which every per-token entry tells its place: 1000 * response + position in the sequence."""
    lengths = torch.tensor([p + r for p, r in zip(prompts, responses, strict=True)])
    cu_seqlens = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    total, num = int(lengths.sum()), len(prompts)
    owner = torch.repeat_interleave(torch.arange(num), lengths)
    inside = torch.arange(total) - cu_seqlens[:-1][owner]
    place = 1000 * owner + inside
    mask = inside >= torch.tensor(prompts)[owner]
    experts = (place[:, None, None] + torch.tensor([[0, 1], [2, 3]])).to(torch.int32)
    routes = Routes(experts, inside > 0, layers=(1, 3), num_experts=10**6)
    index = torch.arange(num)
    rollouts = RolloutBatch(
        tokens=place,
        cu_seqlens=cu_seqlens,
        response_mask=mask,
        rollout_logprobs=-place.float() * mask,
        truncated=index % 2 == 0,
        valid=index % 3 != 0,
        positions=index // group_size,
        routes=routes,
        group_size=group_size,
        version=7,
    )
    return TrainBatch(
        rollouts=rollouts,
        rewards=Rewards(index.float(), index % 2 == 0),
        advantages=index.float() / 2,
        old=OldPolicy(-place.float() * mask - 0.5, place.float() * mask, replace(routes, present=~routes.present)),
        accepted=mask,
        counted=mask & (place % 2 == 0),
        coefficients=None,
    )


def leaves(stage: object, prefix: str = "") -> dict[str, Tensor]:
    """Every tensor of a stage, nested ones included."""
    found: dict[str, Tensor] = {}
    for spec in fields(stage):  # type: ignore[arg-type]
        part = getattr(stage, spec.name)
        if isinstance(part, Tensor):
            found[prefix + spec.name] = part
        elif hasattr(part, "__dataclass_fields__"):
            found |= leaves(part, f"{prefix}{spec.name}.")
    return found


SIZES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), min_size=1, max_size=7)


@given(SIZES, st.data())
@settings(deadline=None, max_examples=60)
def test_selected_responses_carry_every_field_along(sizes: list[tuple[int, int]], draw: st.DataObject) -> None:
    batch = numbered([p for p, _ in sizes], [r for _, r in sizes])
    chosen = draw.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=7))
    part = select(batch, torch.tensor(chosen))
    spans = [slice(int(batch.rollouts.cu_seqlens[i]), int(batch.rollouts.cu_seqlens[i + 1])) for i in chosen]
    by_response = {"rollouts.truncated", "rollouts.valid", "rollouts.positions", "advantages", "rewards.values"}
    by_response |= {"rewards.graded"}
    before, after = leaves(batch), leaves(part)
    assert set(before) == set(after) and len(after) == 18
    for name in set(after) - {"rollouts.cu_seqlens"}:
        if name in by_response:
            expected = before[name][torch.tensor(chosen)]
        else:
            expected = torch.cat([before[name][span] for span in spans])
        assert torch.equal(after[name], expected) and after[name].dtype == before[name].dtype, name
    lengths = [span.stop - span.start for span in spans]
    assert part.rollouts.cu_seqlens.diff().tolist() == lengths and part.rollouts.cu_seqlens[0] == 0
    assert part.rollouts.version == 7 and part.coefficients is None


@dataclass(frozen=True, slots=True)
class Annotated(RolloutBatch):
    """Tomorrow's stage: a field that `select` has never heard of."""

    note: Tensor = field(kw_only=True, metadata=PER_TOKEN)
    label: Tensor = field(kw_only=True, metadata=PER_RESPONSE)


def test_an_unknown_field_is_carried_along_too() -> None:
    rollouts = numbered([1, 2, 1], [3, 1, 2]).rollouts
    known = {spec.name: getattr(rollouts, spec.name) for spec in fields(rollouts)}
    part = select(Annotated(**known, note=rollouts.tokens * 2, label=torch.arange(3)), torch.tensor([2, 0]))
    assert torch.equal(part.note, part.tokens * 2) and part.label.tolist() == [2, 0]


def test_mini_batches_are_whole_groups_in_order() -> None:
    batch = numbered([1, 2, 1, 3, 2, 1, 1, 2], [2, 3, 1, 4, 2, 2, 5, 1], group_size=2)
    parts = split(batch, 2)
    assert [part.advantages.tolist() for part in parts] == [[0, 0.5, 1, 1.5], [2, 2.5, 3, 3.5]]
    assert [part.rollouts.positions.tolist() for part in parts] == [[0, 0, 1, 1], [2, 2, 3, 3]]
    assert torch.equal(torch.cat([part.rollouts.tokens for part in parts]), batch.rollouts.tokens)


@pytest.mark.parametrize("num_mini_batches", [3, 8])
def test_groups_are_never_split(num_mini_batches: int) -> None:
    batch = numbered([1] * 8, [2] * 8, group_size=2)
    with pytest.raises(ValueError, match=f"num_mini_batches={num_mini_batches} of whole groups"):
        split(batch, num_mini_batches)
    with pytest.raises(ValueError, match="groups of 3"):
        split(numbered([1] * 8, [2] * 8, group_size=3), 2)


def test_derived_figures_of_a_batch() -> None:
    rollouts = numbered([1, 3, 2], [4, 0, 2]).rollouts
    assert len(rollouts) == 3 and rollouts.lengths.tolist() == [5, 3, 4]
    assert rollouts.response_lengths.tolist() == [4, 0, 2]
    assert rollouts.sequence_ids.tolist() == [0] * 5 + [1] * 3 + [2] * 4
    assert token_index(rollouts.cu_seqlens, torch.tensor([2, 0])).tolist() == [8, 9, 10, 11, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["tokens", "response_mask", "rollout_logprobs", "truncated", "valid", "positions"])
@pytest.mark.parametrize("extra", [-1, 1])
def test_a_field_of_another_length_is_refused(name: str, extra: int) -> None:
    rollouts = numbered([2, 1], [3, 2]).rollouts
    value = getattr(rollouts, name)
    wrong = value[:-1] if extra < 0 else torch.cat([value, value[:1]])
    with pytest.raises(ValueError, match=rf"RolloutBatch.{name} has {len(wrong)} entries, cu_seqlens says 8 tokens"):
        replace(rollouts, **{name: wrong})


def test_lengths_are_asserted_where_stages_are_joined() -> None:
    """A response cut to its limit whose routes or logprobs were not: refused at the boundary, naming the field."""
    batch, longer = numbered([2, 1], [3, 2]), numbered([2, 1], [3, 3])
    with pytest.raises(ValueError, match=r"Routes.experts has 9 entries, cu_seqlens says 8 tokens"):
        replace(batch.rollouts, routes=longer.rollouts.routes)
    with pytest.raises(ValueError, match=r"OldPolicy.logprobs has 9 entries"):
        replace(batch, old=longer.old)
    with pytest.raises(ValueError, match=r"Rewards.values has 3 entries"):
        replace(batch, rewards=Rewards(torch.zeros(3), torch.ones(3, dtype=torch.bool)))
    for name in ("accepted", "counted", "advantages"):
        with pytest.raises(ValueError, match=rf"TrainBatch.{name}"):
            replace(batch, **{name: torch.zeros(1)})
    with pytest.raises(ValueError, match="coefficients"):
        replace(batch, coefficients=torch.zeros(3))


def test_routes_refuse_shapes_that_do_not_fit_their_header() -> None:
    with pytest.raises(ValueError, match=r"expected \[tokens, 3 MoE layers, k\]"):
        Routes(torch.zeros(5, 2, 2, dtype=torch.uint8), torch.ones(5, dtype=torch.bool), (0, 1, 2), 8)
    with pytest.raises(ValueError, match="their mask 4"):
        Routes(torch.zeros(5, 2, 2, dtype=torch.uint8), torch.ones(4, dtype=torch.bool), (0, 1), 8)


@pytest.mark.parametrize("num_experts", [1, 2, 255, 256, 257, 512, 32768, 32769, 65536])
def test_the_smallest_dtype_holds_the_largest_id(num_experts: int) -> None:
    ids = torch.tensor([0, num_experts - 1])
    dtype = expert_dtype(num_experts)
    assert torch.equal(ids.to(dtype).long(), ids)
    smaller = {torch.int16: torch.uint8, torch.int32: torch.int16}.get(dtype)
    assert smaller is None or torch.iinfo(smaller).max < num_experts - 1


def test_routes_are_packed_without_padding() -> None:
    """One long response beside 63 short ones: entries follow the sum of lengths, not 64 times the longest."""
    batch = numbered([1] * 64, [900] + [4] * 63)
    routes = batch.rollouts.routes
    assert routes is not None and routes.experts.numel() == (901 + 63 * 5) * 2 * 2


def test_stages_are_frozen() -> None:
    with pytest.raises(AttributeError):
        numbered([1], [1]).rollouts.version = 8  # type: ignore[misc]
