"""A process beside a run that outlives it. It writes the record when the run cannot: killed in the middle of a
rollout, or held by an engine that neither answers nor fails, nor takes the weights that it is sent. A thread could not:
it would die, or wait, with the run.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from minirl.config import ConfigError
from minirl.record import RunRecord, State

if TYPE_CHECKING:  # the watcher itself needs no torch
    from torch import Tensor

    from minirl.interfaces import Engine
    from minirl.types import Prompt, RolloutBatch, Sampling

ROLLOUT, LOAD, OUTSIDE, OVER = "rollout", "load", "outside", "over"
LIMITED = {ROLLOUT: "a rollout", LOAD: "a load of weights"}  # what the run waits for an engine to do
GRACE_SECONDS = 10.0  # how long a process that was killed may take to let go of its run's lock


class WatchedEngine:
    """An engine, and beside this process a watcher that is told when a rollout or a load begins and ends. seconds: how
    long one may take before the process is taken for dead."""

    def __init__(self, engine: Engine, record: RunRecord, seconds: float) -> None:
        self.engine = engine
        words = [sys.executable, "-m", "minirl.watch", str(record.folder), str(os.getpid()), str(seconds)]
        self.watcher = subprocess.Popen(words, stdin=subprocess.PIPE, text=True, start_new_session=True)

    @property
    def version(self) -> int:
        return self.engine.version

    def load_parameters(self, parameters: Iterable[tuple[str, Tensor]], version: int) -> None:
        with self.watched(LOAD):
            self.engine.load_parameters(parameters, version)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling, group_size: int) -> RolloutBatch:
        with self.watched(ROLLOUT):
            return self.engine.generate(prompts, sampling, group_size)

    @contextmanager
    def watched(self, doing: str) -> Iterator[None]:
        self.tell(doing)
        try:
            yield
        finally:
            self.tell(OUTSIDE)

    def rest(self) -> None:
        self.engine.rest()

    def close(self) -> None:
        self.engine.close()
        self.tell(OVER)
        self.watcher.communicate()

    def tell(self, word: str) -> None:
        """A run outlives its watcher too."""
        assert self.watcher.stdin is not None  # it is a pipe
        with suppress(BrokenPipeError):
            self.watcher.stdin.write(f"{word}\n")
            self.watcher.stdin.flush()


def stand_by(pipe: int, record: RunRecord, pid: int, seconds: float) -> None:
    """The watcher's life: until the run says that it is over, its pipe closes (it is dead), or its engine takes too
    long (it is killed). The pipe is read without a buffer, in which a word would be hidden from `select`."""
    doing = OUTSIDE
    while True:
        limit = seconds if doing in LIMITED else None
        if not select.select([pipe], [], [], limit)[0]:
            os.kill(pid, signal.SIGKILL)
            reason = f"the engine hangs: {LIMITED[doing]} did not end within engine.max_rollout_seconds={seconds:g}"
            note(record, pid, reason)
            return
        words = os.read(pipe, 4096).decode().split()
        if OVER in words:
            return
        if not words:
            where = f"in the middle of {LIMITED[doing]}" if doing in LIMITED else "outside a rollout"
            note(record, pid, f"the process died {where} without a word: killed from outside, or out of memory")
            return
        doing = words[-1]


def note(record: RunRecord, pid: int, reason: str) -> None:
    """Writes how the run of process `pid`, which is dead, has ended, unless somebody has taken it up again."""
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline:
        try:
            with record.locked():
                found = record.read()
                if found.get("pid") == pid and found.get("state") == State.running:
                    text = f"{reason}; repeat the command to go on from the newest checkpoint"
                    record.update(state=State.failed, reason=text, ended=time.time())
                return
        except ConfigError:  # still locked
            time.sleep(0.1)


def main(arguments: Sequence[str]) -> None:
    folder, pid, seconds = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stand_by(sys.stdin.fileno(), RunRecord(Path(folder)), int(pid), float(seconds))


if __name__ == "__main__":
    main(sys.argv[1:])
