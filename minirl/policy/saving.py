"""When a checkpoint is written: before training goes on, or beside it."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from threading import Event
from typing import Any, Protocol

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from minirl.policy.checkpoint import begin, publish, save
from minirl.world import World


class Saver(Protocol):
    """Every method is collective."""

    def save(self, state: dict[str, Any], checkpoints: Path, version: int, *, num_checkpoints: int) -> None: ...

    def finish(self) -> None:
        """Returns when nothing is being written any more; raises what went wrong."""
        ...


class Foreground:
    """The checkpoint is there when `save` returns."""

    def __init__(self, world: World) -> None:
        self.world = world

    def save(self, state: dict[str, Any], checkpoints: Path, version: int, *, num_checkpoints: int) -> None:
        save(state, checkpoints, version, num_checkpoints=num_checkpoints, world=self.world)

    def finish(self) -> None:
        """Nothing is left to do."""


class Background:
    """`save` copies the state to host memory and returns; a thread writes it while training goes on. One at a time:
    the next waits for the one before. Until all ranks have written all, the checkpoint does not exist."""

    def __init__(self, world: World) -> None:
        self.world = world
        # collectives of its own, on the CPU: the thread's must not meet those of training
        self.group = dist.new_group(backend="gloo")
        self.writing: Future[Any] | None = None
        self.published = Event()

    def save(self, state: dict[str, Any], checkpoints: Path, version: int, *, num_checkpoints: int) -> None:
        self.finish()
        draft = begin(checkpoints, version, self.world)
        self.published.clear()
        # returns when the state has been copied to host memory: what training changes next is not what is written
        self.writing = dcp.async_save(state, checkpoint_id=draft, process_group=self.group)  # type: ignore[assignment]
        assert self.writing is not None

        def close(written: Future[Any]) -> None:
            if self.world.rank == 0 and written.exception() is None:
                publish(draft, checkpoints, version, num_checkpoints=num_checkpoints)
            self.published.set()

        self.writing.add_done_callback(close)

    def finish(self) -> None:
        if self.writing is None:
            return
        writing, self.writing = self.writing, None
        writing.result()
        self.published.wait()
        self.world.barrier()


SAVERS: dict[bool, type[Foreground] | type[Background]] = {False: Foreground, True: Background}
