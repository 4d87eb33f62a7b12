"""Recorded batches: complete or absent, the same on every reading, of any number of ranks, and made by runs."""

import json
import shutil
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path

import pytest
import torch
from small_runs import start

from minirl.batches import FORMAT, Recorder, Sampled, find, joined, load, read, taken, write
from minirl.config import ConfigError
from minirl.types import OldPolicy, Rewards, RolloutBatch, Routes, TrainBatch
from minirl.world import World

ONE = World(0, 1, torch.device("cpu"))


def batch(num_groups: int = 3, group_size: int = 2, first: int = 0, version: int = 5) -> TrainBatch:
    """Ragged responses with routes and numbers that no half precision would keep."""
    random = torch.Generator().manual_seed(first)
    count = num_groups * group_size
    lengths = torch.randint(3, 7, (count,), generator=random)
    total = int(lengths.sum())
    cu_seqlens = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    mask = torch.cat([torch.arange(int(length)) >= 2 for length in lengths])
    logprobs = -12.3456 * torch.rand(total, generator=random) * mask
    experts = torch.randint(300, (total, 2, 3), generator=random).to(torch.int16)
    routes = Routes(experts, torch.rand(total, generator=random) < 0.9, (1, 4), 300)
    rollouts = RolloutBatch(
        tokens=torch.randint(20, (total,), generator=random),
        cu_seqlens=cu_seqlens,
        response_mask=mask,
        rollout_logprobs=logprobs,
        truncated=torch.rand(count, generator=random) < 0.3,
        valid=torch.ones(count, dtype=torch.bool),
        positions=torch.arange(first, first + num_groups).repeat_interleave(group_size),
        routes=routes,
        group_size=group_size,
        version=version,
    )
    rewards = Rewards(torch.rand(count, generator=random), torch.ones(count, dtype=torch.bool))
    old = OldPolicy(logprobs * 1.001, logprobs.abs(), replace(routes, present=mask))
    return TrainBatch(rollouts, rewards, torch.zeros(count), old, mask, mask, None)


def equal(one, other) -> bool:
    if is_dataclass(one):
        return all(equal(getattr(one, spec.name), getattr(other, spec.name)) for spec in fields(one))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return one == other


def kept(folder: Path, *batches: TrainBatch) -> None:
    recorder = Recorder(folder, ONE, {"identity": "abc", "seed": 3})
    for each in batches:
        recorder(each)


def test_a_batch_is_read_as_it_was_written(tmp_path: Path) -> None:
    """To the bit: fp32 log-probabilities, the dtype of the routes, what is no tensor."""
    whole = batch()
    kept(tmp_path / "rollouts", whole)
    found = load(find(tmp_path))
    assert equal(found.sampled, Sampled(whole.rollouts, whole.rewards, whole.old))
    assert found.version == 5 and found.about["identity"] == "abc" and found.about["format"] == FORMAT


def test_a_field_of_tomorrow_is_carried_along(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Inner:
        more: torch.Tensor

    globals()["Inner"] = Inner

    @dataclass(frozen=True)
    class Stage:
        inner: "Inner | None"
        absent: "Inner | None"
        words: tuple[str, ...]

    written = Stage(Inner(torch.arange(3)), None, ("a", "b"))
    write(written, tmp_path / "x.safetensors")
    assert equal(read(Stage, tmp_path / "x.safetensors"), written)


def test_the_latest_batch_of_a_run_is_found(tmp_path: Path) -> None:
    kept(tmp_path / "rollouts", batch(version=8), batch(version=24), batch(version=16))
    assert find(tmp_path) == tmp_path / "rollouts" / "24"
    assert find(tmp_path / "rollouts" / "8").name == "8"
    with pytest.raises(ConfigError, match=r"run\.record_rollouts=true"):
        find(tmp_path / "elsewhere")


def test_what_a_killed_process_left_is_no_batch(tmp_path: Path) -> None:
    """The folder gets its name once it is complete."""
    place = tmp_path / "rollouts"
    (place / "16.unfinished").mkdir(parents=True)
    kept(place, batch(version=8))
    assert [path.name for path in place.iterdir()] == ["8"]
    assert find(tmp_path) == place / "8"


def test_a_resumed_run_writes_the_same_again(tmp_path: Path) -> None:
    kept(tmp_path / "rollouts", batch(version=8))
    first = {path.name: path.read_bytes() for path in (tmp_path / "rollouts" / "8").iterdir()}
    kept(tmp_path / "rollouts", batch(version=8))
    assert {path.name: path.read_bytes() for path in (tmp_path / "rollouts" / "8").iterdir()} == first


def test_a_format_of_another_version_is_refused(tmp_path: Path) -> None:
    kept(tmp_path / "rollouts", batch())
    place = tmp_path / "rollouts" / "5" / "batch.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"format": FORMAT + 1}))
    with pytest.raises(ConfigError, match=f"format {FORMAT + 1} of a recorded batch, this minirl reads {FORMAT}"):
        load(place.parent)


def test_ranks_are_joined_in_the_order_of_the_prompts(tmp_path: Path) -> None:
    """Each rank holds a slice of every mini-batch."""
    whole = batch(num_groups=4)
    sampled = Sampled(whole.rollouts, whole.rewards, whole.old)
    folder = tmp_path / "rollouts" / "5"
    folder.mkdir(parents=True)
    shares = ([0, 1, 4, 5], [2, 3, 6, 7])
    for rank, responses in enumerate(shares):
        write(taken(sampled, torch.tensor(responses)), folder / f"rank-{rank}.safetensors")
    (folder / "batch.json").write_text(json.dumps({"format": FORMAT, "version": 5, "num_ranks": 2}))
    assert equal(load(folder).sampled, sampled)
    parts = [taken(sampled, torch.tensor(responses)) for responses in shares]
    assert len(joined(parts)) == len(sampled)


def test_runs_keep_their_batches_where_they_are_told_to(outputs: Path) -> None:
    """And make them again, the same, when they are resumed."""
    short = ["num_updates=4", "num_mini_batches=2", "eval.every=2", "train.checkpoint_every=2"]
    _, folder = start(outputs, *short, "run.record_rollouts=true")
    assert {path.name for path in (folder / "rollouts").iterdir()} == {"0", "2"}
    found = load(folder / "rollouts" / "2")
    assert len(found.sampled) == 2 * 4 * 4 and found.sampled.rollouts.positions.unique().tolist() == list(range(8, 16))
    assert found.sampled.old.scores is None
    again = {path: path.read_bytes() for path in (folder / "rollouts" / "2").iterdir()}
    shutil.rmtree(folder / "rollouts" / "2")
    shutil.rmtree(folder / "checkpoints" / "4")
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"state": "interrupted"}))
    start(outputs, *short, "run.record_rollouts=true")
    assert {path: path.read_bytes() for path in (folder / "rollouts" / "2").iterdir()} == again
    _, silent = start(outputs, *short, "seed=1")
    assert not (silent / "rollouts").exists()
