"""Two gloo processes with unequal responses against one process with all of them."""

import socket

import pytest
import torch
from policy_cases import (
    algorithm,
    gradients,
    model_config,
    noisy_old,
    policy,
    relative_difference,
    rollouts,
    tiny_model,
    train_batch,
)
from ranks import AGGREGATIONS, BUDGET, rank_main

from minirl.config import Routing
from minirl.models import load
from minirl.policy import checkpoint
from minirl.types import select

VOCAB = 13


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """Sixteen responses of which the second half (rank 1's) are the longest, and what two ranks made of them."""
    folder = tmp_path_factory.mktemp("ranks")
    batch = rollouts(groups=8, max_response=14, seed=4)
    longest_last = batch.lengths.view(-1, 2).sum(1).argsort()
    batch = select(batch, (longest_last[:, None] * 2 + torch.arange(2)).flatten())
    trainer = policy(num_mini_batches=2)
    old = noisy_old(batch, trainer.recompute(batch, Routing.live), scale=0.3)
    inputs = {name: train_batch(batch, old, algorithm(routing=name)) for name in ("live", "r2")}
    torch.save(inputs, folder / "inputs.pt")
    trainer.update(inputs["r2"], algorithm(routing="r2"))
    trainer.save(folder / "by_one")
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(rank_main, args=(2, port, folder), nprocs=2)
    results = {path.stem: torch.load(path, weights_only=False) for path in folder.glob("*.pt")}
    return folder, inputs, results


def test_the_case_is_hard_enough(case):
    _, inputs, results = case
    lengths = inputs["live"].rollouts.response_lengths
    assert lengths[8:].sum() > 1.8 * lengths[:8].sum()
    assert results["counts"][0] != results["counts"][1]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_gradient_of_two_ranks_is_that_of_one(case, aggregation):
    """L01, for every denominator, in float64."""
    _, inputs, results = case
    one = policy(tiny_model(torch.float64), num_mini_batches=2)
    expected = gradients(one, inputs["live"], algorithm(aggregation=aggregation))
    assert relative_difference(results[aggregation], expected) < 1e-9


def test_in_fp32_with_routes_replayed_too(case):
    _, inputs, results = case
    expected = gradients(policy(num_mini_batches=2), inputs["r2"], algorithm(routing="r2"))
    assert relative_difference(results["fp32"], expected) < 1e-5
    assert relative_difference(results["checkpointing"], results["fp32"]) < 1e-6


def test_metrics_and_weights_after_an_update(case):
    folder, inputs, results = case
    one = policy(num_mini_batches=2, max_tokens_per_micro_batch=BUDGET)
    figures = one.world.merge(one.update(inputs["r2"], algorithm(routing="r2")))
    assert figures.keys() == results["figures"].keys()
    for name, value in figures.items():
        assert results["figures"][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    assert relative_difference(results["weights"], dict(one.parameters())) < 1e-6
    exported = load.build(model_config(init_seed=9), vocab_size=VOCAB, checkpoint=folder / "exported").state_dict()
    assert all(torch.equal(exported[name], value) for name, value in results["weights"].items())


def test_recompute_is_each_rank_s_own(case):
    _, inputs, results = case
    batch = inputs["r2"].rollouts
    expected = policy(num_mini_batches=2).recompute(batch, Routing.r3).logprobs
    torch.testing.assert_close(torch.cat(results["recomputed"]), expected, rtol=1e-5, atol=1e-5)


def test_checkpoints_are_resharded_both_ways(case):
    folder, inputs, results = case
    one = policy(tiny_model(init_seed=50), num_mini_batches=2)
    one.load(checkpoint.newest(folder / "by_two"))
    assert one.version == 1
    assert all(torch.equal(value, results["weights"][name]) for name, value in one.parameters())
    one.load(checkpoint.newest(folder / "by_one"))
    one.update(inputs["r2"], algorithm(routing="r2"))
    assert relative_difference(results["continued"], dict(one.parameters())) < 1e-6


def test_divergence_on_one_rank_is_divergence_on_all(case):
    _, _, results = case
    assert results["diverged"] == ["the loss is not finite at update 2"] * 2
