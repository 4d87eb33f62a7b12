"""One rank and two: shares, sums and merged metrics."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from minirl.config import ConfigError
from minirl.metrics.statistics import Histogram, Mean
from minirl.world import FailedElsewhere, World, fault

ALONE = World(0, 1, torch.device("cpu"))


@pytest.mark.parametrize("num_mini_batches", [1, 2, 4])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_mini_batch_is_shared_by_all_ranks(num_mini_batches: int, size: int) -> None:
    """Put together again mini-batch by mini-batch, the shares are the batch in order: each item once."""
    items = list(range(num_mini_batches * size * 5))
    shares = [World(rank, size, torch.device("cpu")).share(items, num_mini_batches) for rank in range(size)]
    rebuilt = [item for n in range(num_mini_batches) for share in shares for item in share[n * 5 : (n + 1) * 5]]
    assert rebuilt == items


def test_what_cannot_be_shared_is_refused_not_dropped() -> None:
    with pytest.raises(ValueError, match="30 prompts: not 2 mini-batches for 8 ranks"):
        World(0, 8, torch.device("cpu")).share(list(range(30)), 2)


def test_alone_everything_is_what_it_was() -> None:
    tensor = torch.tensor([1.0, 2.0])
    total = ALONE.sum(tensor)
    total += 1
    assert (
        tensor.tolist() == [1.0, 2.0]
        and ALONE.max(3) == 3
        and ALONE.gather("x") == ["x"]
        and ALONE.scatter(["x"]) == "x"
    )
    statistics = {"a": Mean(1.0, 4.0), "b": Histogram.of(torch.ones(2), (0.5,))}
    assert ALONE.merge(statistics) == {"a": 0.25, "b": 1.0, "b_p50": 1.0, "b_max": 1.0}
    assert ALONE.pool(statistics) == statistics
    ALONE.barrier()
    assert ALONE.together(lambda: 7) == 7
    with pytest.raises(ValueError, match=r"^no$"):
        ALONE.together(refusing)


def test_a_row_of_ranks_is_as_patient_as_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other ranks wait for the first one, which samples for them."""
    limits = []
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, timeout: limits.append(timeout))
    monkeypatch.setattr(dist, "new_subgroups", lambda size, timeout: (limits.append(timeout), None))
    for name, value in {"RANK": "3", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    World.join("cpu", max_rollout_seconds=3600.0).row(2)
    assert limits == [timedelta(minutes=10 + 60)] * 2


def refusing() -> None:
    raise ValueError("no")


class Unsendable(Exception):
    """Cannot be pickled, nor made from its text alone."""

    def __init__(self, version: int, text: str) -> None:
        super().__init__(text)
        self.version, self.reason = version, lambda: text


@pytest.mark.parametrize("error", [ValueError("no route"), Unsendable(3, "no route"), ConfigError("no route")])
def test_what_one_of_two_raises_ends_both(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its class. The record of a run is rank 0's."""

    def action() -> None:
        raise error

    said: list[Any] = []
    monkeypatch.setattr(World, "gather", lambda self, value: [None, said.append(value) or value])
    with pytest.raises(type(error)) as own:
        World(1, 2, torch.device("cpu")).together(action)
    assert own.value is error
    sent = pickle.loads(pickle.dumps(said[0]))
    monkeypatch.setattr(World, "gather", lambda self, value: [value, sent])
    with pytest.raises(FailedElsewhere) as other:
        World(0, 2, torch.device("cpu")).together(lambda: 7)
    assert fault(other.value) == f"{type(error).__name__}: rank 1: no route"


def test_what_none_of_two_raises_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "gather", lambda self, value: [None, value])
    assert World(1, 2, torch.device("cpu")).together(lambda: 7) == 7


RANK = """
import json, sys, torch
from pathlib import Path
from minirl.metrics.statistics import Max, Mean, Sum
from minirl.world import World

world = World.join("cpu")
mine = torch.tensor([1.0, 5.0]) if world.rank == 0 else torch.tensor([6.0])
copy = torch.tensor([1.0, 2.0, 6.0])
local = {"mean": Mean.of(mine), "max": Max.of(mine), "tokens": Sum.of(mine), "same": Mean.of(copy)}
if world.rank == 1:
    local["only"] = Mean(3.0, 1.0)
kept = torch.tensor([world.rank + 1.0])
found = {
    "size": world.size,
    "sum": world.sum(kept).tolist(),
    "kept": kept.tolist(),
    "max": world.max(10 - world.rank),
    "gather": world.gather(f"rank {world.rank}"),
    "merged": world.merge(local),
    "mesh": world.mesh(1).size(),
}
given = world.scatter([["for 0"], ["for", "1"]] if world.rank == 0 else None)
assert given == (["for 0"], ["for", "1"])[world.rank]
world.barrier()
Path(sys.argv[1], f"{world.rank}.json").write_text(json.dumps(found))
world.leave()
"""


def test_two_ranks_agree_on_the_whole(own_folder: Path) -> None:
    """Unequal shares are weighted by their counts; figures of copies do not double; every rank knows the result."""
    port = str(20000 + os.getpid() % 20000)
    environment = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, "-c", RANK, str(own_folder)]
    ranks = [subprocess.Popen(command, env=environment | {"RANK": rank, "LOCAL_RANK": rank}) for rank in ("0", "1")]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    first, second = (json.loads((own_folder / f"{rank}.json").read_text()) for rank in range(2))
    assert first.pop("kept") == [1.0] and second.pop("kept") == [2.0]
    assert first == second
    assert (first["size"], first["sum"], first["max"], first["mesh"]) == (2, [3.0], 10, 2)
    assert first["gather"] == ["rank 0", "rank 1"]
    assert first["merged"] == {"mean": 4.0, "max": 6.0, "tokens": 12.0, "same": 3.0, "only": 3.0}


def test_a_world_of_one_joins_and_leaves() -> None:
    code = (
        "from minirl.world import World; w = World.join('cpu'); w.barrier(); print(w.size, w.mesh(1).size(), "
        "w.merge({})); w.leave(); w.leave()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["1", "1", "{}"], done.stderr
