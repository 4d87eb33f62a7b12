"""The self-check of the first rollout."""

import pytest
import torch

from minirl.agreement import Disagreement, explained, refuse_disagreement
from minirl.compose import load
from minirl.types import OldPolicy, RolloutBatch
from minirl.world import World

WORLD = World(0, 1, torch.device("cpu"))


def rollouts(logprobs: list[float], valid: bool = True) -> RolloutBatch:
    """One response of these logprobs to a prompt of one token."""
    length = len(logprobs) + 1
    return RolloutBatch(
        tokens=torch.zeros(length, dtype=torch.int64),
        cu_seqlens=torch.tensor([0, length]),
        response_mask=torch.tensor([False] + [True] * len(logprobs)),
        rollout_logprobs=torch.tensor([0.0, *logprobs]),
        truncated=torch.zeros(1, dtype=torch.bool),
        valid=torch.tensor([valid]),
        positions=torch.zeros(1, dtype=torch.int64),
        routes=None,
        group_size=1,
        version=0,
    )


def old(logprobs: list[float]) -> OldPolicy:
    values = torch.tensor([0.0, *logprobs])
    return OldPolicy(values, torch.zeros_like(values), None)


def test_what_the_format_explains_passes_and_more_stops_the_run() -> None:
    sampled = rollouts([-1.0, -2.0])
    refuse_disagreement(sampled, old([-1.1, -1.7]), bound=0.2001, world=WORLD)
    with pytest.raises(Disagreement, match=r"mean \|log pi_old - log mu\| is 0\.2 nats over 2 tokens"):
        refuse_disagreement(sampled, old([-1.1, -1.7]), bound=0.1999, world=WORLD)
    with pytest.raises(Disagreement, match="nan nats"):
        refuse_disagreement(sampled, old([float("nan"), -2.0]), bound=1.0, world=WORLD)


def test_invalid_responses_say_nothing() -> None:
    with pytest.raises(Disagreement, match="not finite"):
        refuse_disagreement(rollouts([0.0], valid=False), old([-9.0]), bound=1.0, world=WORLD)


def test_the_coarser_side_decides() -> None:
    fine, engine, trainer = (
        explained(load(["engine.numerics=" + numerics, "train.compute_dtype=" + dtype]))
        for numerics, dtype in (("fp32", "float32"), ("bf16", "float32"), ("fp32", "bfloat16"))
    )
    assert fine < engine == trainer
