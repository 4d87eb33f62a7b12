"""What only matters at scale: replicas of shards, memory given back, checkpoints beside training, sharded loading.

Each switch leaves the arithmetic alone: same gradients, same weights after the update.
"""

import socket
import threading

import pytest
import torch
import torch.distributed.checkpoint as dcp
from policy_cases import (
    algorithm,
    equal,
    gradients,
    noisy_old,
    policy,
    relative_difference,
    rollouts,
    tiny_model,
    train_batch,
    weights,
)
from scale_ranks import BUDGET, rank_main

from minirl.balance import destinations
from minirl.config import Routing
from minirl.policy import checkpoint, saving
from minirl.types import select, split


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """Sixteen responses, half for each of two ranks, and what they made of them."""
    folder = tmp_path_factory.mktemp("scale")
    batch = rollouts(groups=8, max_response=14, seed=4)
    trainer = policy(num_mini_batches=2)
    data = train_batch(batch, noisy_old(batch, trainer.recompute(batch, Routing.live), scale=0.3), algorithm())
    torch.save(data, folder / "inputs.pt")
    by_length = batch.lengths.view(-1, 2).sum(1).argsort().view(2, 2, 2)  # of each mini-batch rank 1 has the longest
    torch.save(select(batch, torch.stack([by_length * 2, by_length * 2 + 1], -1).flatten()), folder / "skewed.pt")
    tiny_model().to(torch.bfloat16).save_pretrained(folder / "model", max_shard_size="20KB")
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(rank_main, args=(port, folder), nprocs=2)
    return data, {path.stem: torch.load(path, weights_only=False) for path in folder.glob("*.pt")}


def test_two_replicas_have_the_gradient_of_one_process(case):
    data, results = case
    one = policy(num_mini_batches=2, max_tokens_per_micro_batch=BUDGET)
    assert relative_difference(results["replicas"], gradients(one, data, algorithm())) < 1e-5
    assert results["placements"] == ["R", "S(0)"]
    one.update(data, algorithm())
    assert relative_difference(results["after_replicas"], weights(one)) < 1e-4


def test_replicas_add_their_gradients_once_per_update_and_reshard(case):
    _, results = case
    assert results["reductions"] == 1
    assert equal(results["resharded"], results["after_replicas"])


def test_offload_and_background_saving_change_no_weight_on_two_ranks(case):
    data, results = case
    assert equal(results["one_and_one"], results["after_two"]) or (
        relative_difference(results["one_and_one"], results["after_two"]) < 1e-6
    )
    one = policy(num_mini_batches=2, max_tokens_per_micro_batch=BUDGET)
    one.update(data, algorithm())
    one.update(data, algorithm())
    assert relative_difference(results["after_two"], weights(one)) < 1e-4


def test_each_rank_reads_its_own_shards_and_no_others(case):
    """bf16 files: half the bytes of the fp32 that a rank holds; together the ranks have read the folder once."""
    _, results = case
    expected = tiny_model().to(torch.bfloat16).float().state_dict()
    total = sum(value.nbytes for value in expected.values())
    for read, held, whole in results["loading"]:
        assert read == held / 2
        assert held < 0.53 * total  # uneven rows: 13 words over two ranks
        assert equal(whole, expected)
    assert sum(read for read, _, _ in results["loading"]) == total / 2


def by_position(batches):
    """Every response of all ranks: (position, tokens, logprobs, mask, routes)."""
    found = []
    for batch in batches:
        for i, (begin, end) in enumerate(zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True)):
            parts = (batch.tokens, batch.rollout_logprobs, batch.response_mask, batch.routes.experts)
            found.append((int(batch.positions[i]), *(part[begin:end].tolist() for part in parts)))
    return sorted(found)


def test_groups_change_ranks_whole_within_their_mini_batch_and_level_the_tokens(case):
    _, results = case
    before, after = zip(*results["balanced"], strict=True)
    assert by_position(before) == by_position(after)
    for m in range(2):
        given, kept = ([select(each, torch.arange(4) + 4 * m) for each in batches] for batches in (before, after))
        assert by_position(given) == by_position(kept)
    for batch in after:  # groups are whole: neighbours, two by two
        assert len(batch) == 8 and (batch.positions.view(-1, 2).diff(dim=1) == 1).all()
    (a, b), (c, d) = ([int(each.lengths.sum()) for each in batches] for batches in (before, after))
    assert a + b == c + d and abs(c - d) < 0.5 * abs(a - b)


def test_the_dearest_group_goes_first_and_every_rank_keeps_its_number():
    """9 and 8 part; 2 joins 8, and 1 joins 9. What is level already stays where it is."""
    assert destinations([[9, 8], [2, 1]], 1) == [[0, 1], [1, 0]]
    assert destinations([[5, 1, 3, 2], [5, 1, 3, 2]], 2) == [[0, 0, 0, 0], [1, 1, 1, 1]]


def live_bytes(trainer):
    local = [each.to_local() for each in trainer.trained]
    local += [value.to_local() for state in trainer.optimizer.state.values() for value in (state["exp_avg"],)]
    return sum(each.untyped_storage().nbytes() for each in local)


def test_the_trainer_s_memory_is_away_while_the_engine_samples():
    batch, algo = rollouts(groups=4), algorithm()
    plain, resting = policy(num_mini_batches=2), policy(num_mini_batches=2, offload=True)
    full = live_bytes(plain)
    for _ in range(2):
        for trainer in (plain, resting):
            given = weights(trainer)  # the sync: then the engine samples
            assert live_bytes(trainer) == (full if trainer is plain else full - live_moments(trainer, full))
            data = train_batch(batch, trainer.recompute(batch, Routing.live), algo)
            for part in split(data, 2):
                trainer.update(part, algo)
            assert given.keys() == weights(trainer).keys()
    assert live_bytes(plain) == full and live_bytes(resting) == 0
    assert equal(weights(plain), weights(resting))


def live_moments(trainer, full):
    """Before the first update nothing has put the moments away."""
    return full if trainer.version else full // 2


def test_parameters_that_are_asked_for_twice_are_there_twice(tmp_path):
    trainer = policy(offload=True)
    first = weights(trainer)
    next(iter(trainer.parameters()))  # an engine that fails after the first one
    assert equal(first, weights(trainer))
    trainer.save(tmp_path)
    other = policy(tiny_model(init_seed=9), offload=True)
    other.load(tmp_path / "0")
    assert equal(weights(other), first)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """What is written is the state at `save`, not what an update has made of it since."""
    held, go = threading.Event(), threading.Event()
    original = dcp.FileSystemWriter.write_data

    def slow(self, *arguments):
        held.set()
        go.wait(30)
        return original(self, *arguments)

    monkeypatch.setattr(dcp.FileSystemWriter, "write_data", slow)
    batch, algo = rollouts(), algorithm()
    trainer = policy(async_checkpoints=True)
    before = weights(trainer)
    trainer.save(tmp_path)
    assert held.wait(30) and checkpoint.newest(tmp_path) is None
    trainer.update(train_batch(batch, trainer.recompute(batch, Routing.live), algo), algo)
    assert not equal(weights(trainer), before)
    go.set()
    trainer.close()
    assert checkpoint.newest(tmp_path) == tmp_path / "0"
    monkeypatch.undo()
    again = policy(tiny_model(init_seed=9))
    again.load(tmp_path / "0")
    assert equal(weights(again), before) and again.version == 0
    trainer.save(tmp_path)
    trainer.save(tmp_path)  # waits for the one before
    trainer.close()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["0", "1"]


def test_a_background_write_that_fails_is_an_error_and_leaves_the_last_complete_one(tmp_path, monkeypatch):
    trainer = policy(async_checkpoints=True)
    trainer.save(tmp_path)
    trainer.close()

    def full(self, *arguments):
        raise OSError("no space left")

    monkeypatch.setattr(dcp.FileSystemWriter, "write_data", full)
    trainer.version = 5
    trainer.save(tmp_path)
    with pytest.raises(dcp.api.CheckpointException, match="no space left"):
        trainer.close()
    assert checkpoint.newest(tmp_path) == tmp_path / "0"
    assert saving.SAVERS[False] is saving.Foreground
