"""Hybrid sharding as it is meant, two replicas of two shards each, in four gloo processes, against one process."""

import socket

import pytest
import torch
from grid_ranks import BUDGET, NUM_RANKS, rank_main
from policy_cases import (
    algorithm,
    equal,
    gradients,
    noisy_old,
    policy,
    relative_difference,
    rollouts,
    train_batch,
    weights,
)

from minirl.config import Routing

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """Sixteen responses, a quarter for each of four ranks, and what they made of them."""
    folder = tmp_path_factory.mktemp("grid")
    batch = rollouts(groups=8, max_response=14, seed=4)
    old = noisy_old(batch, policy(num_mini_batches=2).recompute(batch, Routing.live), scale=0.3)
    data = train_batch(batch, old, algorithm(routing="r2"))
    torch.save(data, folder / "inputs.pt")
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(rank_main, args=(port, folder), nprocs=NUM_RANKS)
    return data, {path.stem: torch.load(path, weights_only=False) for path in folder.glob("*.pt")}


def test_neighbours_share_a_copy_and_replicas_hold_the_same(case):
    _, results = case
    assert results["mesh"] == ([[0, 1], [2, 3]], ["R", "S(0)"])
    rows = [shape[0] for shape in results["rows"]]
    assert rows[:2] == rows[2:] and rows[0] >= rows[1] > 0
    first, second, *copies = results["held"]
    assert (
        torch.equal(first, copies[0])
        and torch.equal(second, copies[1])
        and not torch.equal(first[: len(second)], second)
    )


def test_the_gradient_the_figures_and_two_updates_are_those_of_one_process(case):
    data, results = case
    algo = algorithm(routing="r2")
    one = policy(num_mini_batches=2, max_tokens_per_micro_batch=BUDGET)
    assert relative_difference(results["gradients"], gradients(one, data, algo)) < 1e-5
    figures = one.world.merge(one.update(data, algo))
    assert figures.keys() == results["figures"].keys()
    for name, value in figures.items():
        assert results["figures"][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    one.update(data, algo)
    assert relative_difference(results["weights"], weights(one)) < 1e-4


def test_its_checkpoint_is_one_of_any_number_of_ranks(case):
    _, results = case
    assert equal(results["resharded"], results["weights"])
