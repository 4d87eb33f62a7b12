"""Checkpoints: exact resume, nothing half-written, the newest kept."""

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from policy_cases import algorithm, policy, rollouts, tiny_model, train_batch

from minirl.config import Routing
from minirl.policy import checkpoint
from minirl.types import split


def steps(trainer, count, *, num_mini_batches=1, routing="live"):
    """Updates on rollouts that depend on the version alone, as the loop's do."""
    algo, end = algorithm(routing=routing), trainer.version + count
    while trainer.version < end:
        batch = rollouts(groups=2 * num_mini_batches, seed=trainer.version)
        data = train_batch(batch, trainer.recompute(batch, algo.routing), algo, seed=trainer.version)
        for mini_batch in split(data, num_mini_batches):
            trainer.update(mini_batch, algo)
    return trainer


def everything(trainer):
    """Weights, moments and step counts, whole."""
    state = {name: value.clone() for name, value in trainer.parameters()}
    names = {parameter: name for name, parameter in trainer.model.named_parameters()}
    for parameter, moments in trainer.optimizer.state.items():
        for kind, value in moments.items():
            whole = value.full_tensor() if hasattr(value, "full_tensor") else value
            state[f"{kind} of {names[parameter]}"] = whole.clone()
    return state


def identical(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(("num_mini_batches", "half", "routing"), [(1, 5, "live"), (4, 4, "r2")])
def test_resuming_is_exact(tmp_path, num_mini_batches, half, routing):
    """2 x half updates == half, save, a new process's policy, load, half more: to the bit."""
    options = {"num_mini_batches": num_mini_batches, "routing": routing}
    unbroken = steps(policy(num_mini_batches=num_mini_batches), 2 * half, **options)
    steps(policy(num_mini_batches=num_mini_batches), half, **options).save(tmp_path)
    resumed = policy(tiny_model(init_seed=77), num_mini_batches=num_mini_batches)
    resumed.load(checkpoint.newest(tmp_path))
    assert resumed.version == half
    steps(resumed, half, **options)
    assert resumed.version == unbroken.version == 2 * half
    assert identical(everything(resumed), everything(unbroken))
    # were the moments lost, this would differ
    forgetful = policy(num_mini_batches=num_mini_batches)
    dcp.load({"model": forgetful.model.state_dict()}, checkpoint_id=checkpoint.newest(tmp_path))
    forgetful.version = half
    assert not identical(everything(steps(forgetful, half, **options)), everything(unbroken))


def test_a_checkpoint_without_the_moments_is_an_error(tmp_path):
    """C03: never resumed as if they were zero."""
    trainer = policy()
    dcp.save({"model": trainer.model.state_dict(), "version": torch.tensor(3)}, checkpoint_id=tmp_path / "3")
    with pytest.raises((dcp.api.CheckpointException, RuntimeError), match="adam"):
        trainer.load(tmp_path / "3")


def test_saving_before_the_first_update_and_saving_again(tmp_path):
    trainer = policy()
    trainer.save(tmp_path)
    trainer.save(tmp_path)
    assert checkpoint.newest(tmp_path) == tmp_path / "0"
    again = policy(tiny_model(init_seed=5))
    again.load(tmp_path / "0")
    assert identical(everything(again), everything(trainer))


def test_loading_after_a_pass_leaves_nothing_of_the_weights_before(tmp_path):
    """Weights that a pass had gathered are not used again."""
    batch, other = rollouts(), policy(tiny_model(init_seed=5))
    other.save(tmp_path)
    expected = other.recompute(batch, Routing.live).logprobs
    trainer = policy()
    assert not torch.equal(trainer.recompute(batch, Routing.live).logprobs, expected)
    trainer.load(tmp_path / "0")
    assert torch.equal(trainer.recompute(batch, Routing.live).logprobs, expected)


def test_the_newest_are_kept_by_number_not_by_name(tmp_path):
    trainer = policy(num_checkpoints=2)
    for version in (8, 9, 10):
        trainer.version = version
        trainer.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "9"]
    assert checkpoint.newest(tmp_path).name == "10"


def test_a_death_while_writing_leaves_the_last_complete_one(tmp_path, monkeypatch):
    trainer = policy(num_checkpoints=1)
    trainer.version = 5
    trainer.save(tmp_path)
    real = dcp.save

    def dies(state, checkpoint_id):
        real(state, checkpoint_id=checkpoint_id)
        (Path(checkpoint_id) / ".metadata").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(dcp, "save", dies)
    trainer.version = 10
    with pytest.raises(KeyboardInterrupt):
        trainer.save(tmp_path)
    assert checkpoint.newest(tmp_path).name == "5"
    monkeypatch.undo()
    trainer.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["10"]  # the draft is gone too


def test_nothing_to_resume_from(tmp_path):
    assert checkpoint.newest(tmp_path) is None and checkpoint.newest(tmp_path / "absent") is None
