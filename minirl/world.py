"""Rank, size and what is summed over ranks: all that the code knows of distributed execution."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from math import prod
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from minirl.config import ConfigError
from minirl.types import Statistics, figures, merge

Item = TypeVar("Item")

PATIENCE = timedelta(minutes=10)


class FailedElsewhere(Exception):
    """What another rank raised in something that all ranks do, in its words."""


@dataclass(frozen=True)
class World:
    """All ranks of one run. Data parallelism is over whole groups of responses. patience: how long one may keep the
    others waiting before they take it for dead."""

    rank: int
    size: int
    device: torch.device
    patience: timedelta = PATIENCE

    @classmethod
    def join(cls, device: str, max_rollout_seconds: float | None = None) -> World:
        """Joins the ranks that torchrun started, or makes a world of one. `device`: "auto", "cpu" or "cuda". Their
        patience is PATIENCE, and as long as a rollout may take."""
        if device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("run.device=cuda: torch sees no GPU here; use run.device=auto or cpu")
        cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(place)
        limit = PATIENCE + timedelta(seconds=max_rollout_seconds or 0)
        if not dist.is_initialized():
            backend = "nccl" if cuda else "gloo"
            if "RANK" in os.environ:
                dist.init_process_group(backend, timeout=limit)
            else:
                dist.init_process_group(backend, timeout=limit, store=dist.HashStore(), rank=0, world_size=1)
        return cls(rank, size, place, limit)

    def mesh(self, num_replicas: int) -> DeviceMesh:
        """All ranks in a row; or rows of `size / num_replicas` neighbours that hold one copy of the model each."""
        if num_replicas == 1:
            return init_device_mesh(self.device.type, (self.size,))
        shape = (num_replicas, self.size // num_replicas)
        return init_device_mesh(self.device.type, shape, mesh_dim_names=("replica", "shard"))

    def share(self, items: Sequence[Item], num_mini_batches: int) -> list[Item]:
        """This rank's part of a batch: of each mini-batch the rank-th slice, so that every update sees all ranks."""
        size, rest = divmod(len(items), num_mini_batches * self.size)
        if rest:
            raise ValueError(f"{len(items)} prompts: not {num_mini_batches} mini-batches for {self.size} ranks each")
        starts = [(batch * self.size + self.rank) * size for batch in range(num_mini_batches)]
        return [item for start in starts for item in items[start : start + size]]

    def sum(self, tensor: Tensor) -> Tensor:
        """Elementwise over ranks, on the world's device; the argument is left alone."""
        total = tensor.detach().to(self.device, copy=True)
        if self.size > 1:
            dist.all_reduce(total)
        return total

    def max(self, number: int) -> int:
        """The largest of the ranks' numbers."""
        if self.size == 1:
            return number
        largest = torch.tensor(number, device=self.device)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's (picklable) value, in the order of ranks, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def together(self, action: Callable[[], Item]) -> Item:
        """What `action` returns on this rank. Where it raises on any of them it ends on all: with the rank's own error,
        else with FailedElsewhere. A rank that ended by itself would leave the others in the middle of what they do
        together; so would an `action` that ends on one rank while the others wait for it inside."""
        if self.size == 1:
            return action()
        done, own = None, None
        try:
            done = action()
        except Exception as error:  # of whatever class: it is raised again
            own = error
        said = self.gather(None if own is None else (type(own).__name__, str(own)))
        if own is not None:
            raise own
        for rank, failure in enumerate(said):
            if failure is not None:
                raise FailedElsewhere(f"{failure[0]}: rank {rank}: {failure[1]}")
        return cast(Item, done)

    def row(self, size: int) -> dist.ProcessGroup | None:
        """The `size` ranks in a row that this one is among, for `scatter`; None: all. Made by all ranks together. Left
        to itself torch would give it less patience than the world has."""
        return dist.new_subgroups(size, timeout=self.patience)[0] if 1 < size < self.size else None

    def scatter(self, values: Sequence[Any] | None, row: dist.ProcessGroup | None = None) -> Any:
        """This rank's of the (picklable) values that the first of its row has, one for each; the others give None."""
        if self.size == 1:
            (value,) = values or ()
            return value
        received: list[Any] = [None]
        dist.scatter_object_list(received, None if values is None else list(values), group=row, group_src=0)
        return received[0]

    def exchange(self, rows: Tensor, send: list[int], receive: list[int]) -> Tensor:
        """send[r] rows of `rows`, in order, go to rank r; what arrives: receive[r] rows from each rank r, in order."""
        sent = rows.to(self.device).contiguous()
        width = sent.itemsize * prod(sent.shape[1:])
        arrived = torch.empty(sum(receive) * width, dtype=torch.uint8, device=self.device)
        into, out = ([count * width for count in counts] for counts in (receive, send))
        dist.all_to_all_single(arrived, sent.view(-1).view(torch.uint8), into, out)
        return arrived.view(rows.dtype).view(sum(receive), *rows.shape[1:]).to(rows.device)

    def pool(self, statistics: Statistics) -> Statistics:
        """The statistics of all ranks together, on every rank."""
        return reduce(merge, self.gather(statistics))

    def merge(self, statistics: Statistics) -> dict[str, float]:
        """The finished figures over all ranks."""
        return figures(self.pool(statistics))

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def leave(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def fault(error: Exception) -> str:
    """What ended a run, in words. A rank that dies shows in the others as an error of whatever they did together."""
    if isinstance(error, FailedElsewhere):
        return str(error)
    said = f"{type(error).__name__}: {error}"
    together = isinstance(error, dist.DistError) or "gloo" in str(error) or "NCCL" in str(error)
    if not together:
        return said
    return f"another rank died, or kept this one waiting for too long: repeat the command to go on ({said})"
