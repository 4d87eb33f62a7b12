"""No switch that silently does nothing: changing any key of algo.* changes something that can be observed.

Observed are the fields of the protocol and the terms of the loss on one crafted batch: pi_old differs from both mu and
pi_theta, bounds bind on both sides, lengths differ, groups are mixed, uniform and partly ungraded, and there are
truncated, invalid and route-less responses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from typing import Any, get_type_hints

import pytest
import torch
from algo_cases import METHODS, algo_config, draw, gradient, prepared

from minirl.algo.algorithm import build
from minirl.config import AlgoConfig
from minirl.types import OldPolicy, Rewards, Routes, TrainBatch


def crafted() -> tuple[TrainBatch, torch.Tensor]:
    """(batch, log pi_theta): a draw with everything that can go wrong in it."""
    sample = draw(37)
    batch, num_responses = sample.batch, len(sample.batch)
    rollouts, num_tokens = batch.rollouts, len(batch.rollouts.tokens)
    graded, valid = torch.ones(num_responses, dtype=torch.bool), torch.ones(num_responses, dtype=torch.bool)
    graded[[17, 40]], valid[30] = False, False
    mu = torch.where(rollouts.sequence_ids == 30, 0.0, rollouts.rollout_logprobs)
    present = torch.ones(num_tokens, dtype=torch.bool)
    engine = present.clone()
    engine[rollouts.cu_seqlens[1:] - 1] = False
    engine[rollouts.cu_seqlens[20]] = False  # the engine lost the first token of response 20
    experts = torch.zeros(num_tokens, 1, 2, dtype=torch.uint8)
    rollouts = replace(rollouts, valid=valid, rollout_logprobs=mu, routes=Routes(experts, engine, (0,), 4))
    old = OldPolicy(batch.old.logprobs, batch.old.entropy, Routes(experts, present, (0,), 4))
    rewards = Rewards(batch.rewards.values * graded, graded)
    return replace(batch, rollouts=rollouts, old=old, rewards=rewards), sample.logprobs().detach()


BATCH, LOGPROBS = crafted()


def observed(cfg: AlgoConfig) -> dict[str, Any]:
    """Everything that another room can see of an algorithm, or the error it raises."""
    try:
        algo = build(cfg)
        batch = prepared(algo, BATCH)
    except ValueError as error:
        return {"error": str(error)}
    slope, terms = gradient(algo, batch, LOGPROBS)
    values = {spec.name: getattr(terms, spec.name).detach().tolist() for spec in fields(terms)}
    values |= {
        "gradient": slope.tolist(),
        "advantages": batch.advantages.tolist(),
        "counts": algo.counts(batch).tolist(),
    }
    return values | {"accepted": batch.accepted.tolist(), "counted": batch.counted.tolist(), "routing": algo.routing}


def leaves(kind: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, type) of every leaf of the schema."""
    hints = get_type_hints(kind)
    for spec in fields(kind):
        if is_dataclass(hints[spec.name]):
            yield from leaves(hints[spec.name], f"{prefix}{spec.name}.")
        else:
            yield f"{prefix}{spec.name}", hints[spec.name]


def written(key: str, value: object) -> str:
    return f"algo.{key}={'null' if value is None else value}"


def keys(prefix: str, **values: object) -> list[str]:
    return [written(f"{prefix}.{name}", value) for name, value in values.items()]


SOFT = keys("trust_region", kind="soft", low=None, high=None, tau_positive=1.0, tau_negative=1.0)
TV = keys("trust_region", kind="tv", low=None, high=None, delta=0.1)
RATIO = keys("trust_region", low=0.2, high=0.2)
UNCAPPED = keys("is_weight.product", high=None)
TOKENS = keys("reject", level="token", low=0.5, high=2.0)

# key: (configuration it acts in, values it takes there), every two of which must be told apart
MUTATIONS: dict[str, tuple[list[str], list[object]]] = {
    "is_weight.staleness.low": (UNCAPPED, [None, 0.5, 0.8]),
    "is_weight.staleness.high": (UNCAPPED, [None, 1.5, 2.0]),
    "is_weight.discrepancy.low": (UNCAPPED, [None, 0.5, 0.8]),
    "is_weight.discrepancy.high": (UNCAPPED, [None, 1.5, 2.0]),
    "is_weight.product.low": ([], [None, 0.5, 0.8]),
    "is_weight.product.high": ([], [None, 2.0, 5.0]),
    "trust_region.low": (RATIO, [0.1, 0.2]),
    "trust_region.high": (RATIO, [0.1, 0.2]),
    "trust_region.delta": (TV, [0.05, 0.1]),
    "trust_region.tau_positive": (SOFT, [1.0, 2.0]),
    "trust_region.tau_negative": (SOFT, [1.0, 2.0]),
    "trust_region.dual": (RATIO, [None, 1.2, 1.5]),
    "reject.low": (TOKENS, [None, 0.5, 0.8]),
    "reject.high": (TOKENS, [None, 1.5, 2.0]),
    "reject.counted": (TOKENS, ["true", "false"]),
    "aggregation.length": (keys("aggregation", kind="token_sum_norm", length=12), [12, 24]),
    "aggregation.scale": ([], [1.0, 2.0]),
    "is_weight.staleness.outside": (keys("is_weight.staleness", high=1.5), ["clamp", "zero"]),
    "is_weight.discrepancy.outside": (keys("is_weight.discrepancy", high=1.5), ["clamp", "zero"]),
    "is_weight.product.outside": ([], ["clamp", "zero"]),
    "trust_region.level": (RATIO, ["token", "sequence", "geometric"]),
    "trust_region.kind": (
        keys("trust_region", delta=0.1, tau_positive=1.0, tau_negative=1.0),
        ["none", "ratio", "tv", "kl", "soft"],
    ),
    "reject.level": (keys("reject", low=0.5, high=2.0), ["none", "token", "sequence", "geometric"]),
    "aggregation.kind": (keys("aggregation", length=12), []),
    "routing": (["algo.routing_missing=drop"], []),
    "routing_missing": (["algo.routing=r3"], []),
}


@pytest.mark.parametrize(("key", "kind"), list(leaves(AlgoConfig)))
def test_every_value_of_every_key_is_observable(key: str, kind: Any) -> None:
    if key == "name":
        return  # what an arm is called on a page, not what it does
    base, values = MUTATIONS.get(key, ([], []))
    if not values:
        assert issubclass(kind, StrEnum), f"{key}: a key of the schema that this test does not know"
        values = list(kind)
    seen = [observed(algo_config("minirl", *base, written(key, value))) for value in values]
    for index, first in enumerate(seen):
        for second in seen[index + 1 :]:
            assert first != second, f"two values of algo.{key} cannot be told apart: {values}"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_told_apart_from_every_other(name: str) -> None:
    """No two files of conf/algo are one algorithm under two names."""
    mine = observed(algo_config(name))
    for other in METHODS:
        if other != name:
            assert observed(algo_config(other)) != mine, f"{name} and {other} do the same"
