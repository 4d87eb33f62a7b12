"""The same inputs through another library: numbers of verl 0.9.1, committed in peer_numbers.json.

`make_peer_numbers.py` beside this file made them (seed, shapes and settings stand there); it needs verl, this test does
not. One of the sixteen responses has no response token at all: a fully masked row there, an empty response here.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from algo_cases import algo_config, algorithm, gradient, pack, prepared, spread
from torch import Tensor

from minirl.algo import is_weights
from minirl.algo.equations import ThreePolicies
from minirl.types import TrainBatch

PEER: dict[str, Any] = json.loads(Path(__file__).with_name("peer_numbers.json").read_text(encoding="utf-8"))
LENGTHS: list[int] = PEER["inputs"]["lengths"]
MASK = torch.arange(8) < torch.tensor(LENGTHS)[:, None]


def matrix(numbers: list[list[float]]) -> Tensor:
    """[16, 8] -> [R] response tokens."""
    return torch.tensor(numbers, dtype=torch.float64)[MASK]


def given(name: str) -> Tensor:
    return matrix(PEER["inputs"][name])


BATCH: TrainBatch = pack(
    LENGTHS,
    rollout_logprobs=given("mu"),
    old_logprobs=given("old"),
    rewards=torch.tensor(PEER["inputs"]["rewards"], dtype=torch.float64),
    group_size=PEER["group_size"],
)
RESPONSE = BATCH.rollouts.response_mask
THETA = spread(given("theta"), RESPONSE)


def test_a_row_is_fully_masked() -> None:
    assert LENGTHS.count(0) == 1
    assert sum(LENGTHS) == len(given("mu")) == int(RESPONSE.sum())


@pytest.mark.parametrize("kind", ["group_mean", "group_mean_std", "leave_one_out"])
def test_advantages(kind: str) -> None:
    found = algorithm("minirl", f"algo.advantage={kind}").advantage(BATCH.rewards, PEER["group_size"])
    assert found.tolist() == pytest.approx(PEER["advantages"][kind], rel=1e-6, abs=1e-7)


AGGREGATIONS = {
    "token-mean": (["algo.aggregation.kind=token_mean"], 1),
    "token-sum": (["algo.aggregation.kind=token_mean"], sum(LENGTHS)),
    "seq-mean-token-sum": ([], 1),
    "seq-mean-token-mean": (["algo.aggregation.kind=seq_mean_token_mean"], 1),
    "seq-mean-token-sum-norm": (
        ["algo.aggregation.kind=token_sum_norm", f"algo.aggregation.length={PEER['budget']}"],
        1,
    ),
}


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_aggregations(mode: str) -> None:
    """The aggregate of -log pi_theta: reinforce with A = 1. verl adds 1e-8 to a response's length."""
    overrides, factor = AGGREGATIONS[mode]
    algo = algorithm("reinforce", *overrides)
    batch = replace(prepared(algo, BATCH), advantages=torch.ones(len(BATCH), dtype=torch.float64))
    slope, terms = gradient(algo, batch, THETA)
    peer = PEER["aggregations"][mode]
    assert terms.loss.item() * factor == pytest.approx(peer["loss"], rel=2e-8)
    assert (slope[RESPONSE] * factor).tolist() == pytest.approx(matrix(peer["gradient"]).tolist(), rel=2e-8)


@pytest.mark.parametrize("name", ["tis", "seq_tis", "icepop"])
def test_discrepancy_weights(name: str) -> None:
    """min(w, 2), min(rho, 2) and w 1[0.5 <= w <= 5], each bound met; exactly 0 in the masked row."""
    weight = is_weights.build(
        replace(algo_config(name).is_weight, staleness=algo_config("reinforce").is_weight.staleness)
    )
    policies = ThreePolicies(
        THETA, BATCH.old.logprobs, BATCH.rollouts.rollout_logprobs, RESPONSE, BATCH.rollouts.cu_seqlens
    )
    found, capped = weight(policies)
    assert found[RESPONSE].tolist() == pytest.approx(matrix(PEER["weights"][name]).tolist(), rel=1e-12)
    assert capped.any() and not capped.all() and not found[~RESPONSE].any()
    assert PEER["weights"][name][LENGTHS.index(0)] == [0.0] * 8


LOSSES: dict[str, list[str]] = {
    "vanilla": ["dapo", "algo.reject.groups=all"],
    "vanilla per response": ["grpo"],
    "gspo": ["gspo"],
    "cispo": ["cispo"],
    "sapo": ["sapo"],
    "tis": ["tis"],
    "seq_tis": ["seq_tis"],
    "icepop": ["icepop"],
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_losses(name: str) -> None:
    """d loss / d log pi_theta. verl's advantages stand in, so that only the loss is compared."""
    algo = algorithm(*LOSSES[name])
    advantages = torch.tensor(PEER["advantages"]["group_mean_std"], dtype=torch.float64)
    slope, terms = gradient(algo, replace(prepared(algo, BATCH), advantages=advantages), THETA)
    expected = matrix(PEER["losses"][name]["gradient"])
    exact = name in ("vanilla", "cispo")  # token means; verl adds 1e-8 to a response's length
    assert slope[RESPONSE].tolist() == pytest.approx(expected.tolist(), rel=1e-12 if exact else 2e-8, abs=1e-15)
    assert expected.any()
    if name in ("cispo", "sapo"):
        assert terms.capped.any() == (name == "cispo")
    else:
        assert terms.high.any() and terms.low.any()  # clipped on both sides


def test_cispo_value() -> None:
    """The one loss of the list whose value, not only its gradient, is that of our line."""
    algo = algorithm("cispo")
    advantages = torch.tensor(PEER["advantages"]["group_mean_std"], dtype=torch.float64)
    terms = gradient(algo, replace(prepared(algo, BATCH), advantages=advantages), THETA)[1]
    assert terms.loss.item() == pytest.approx(PEER["losses"]["cispo"]["loss"], rel=1e-12)
