"""Processes for runs: forked from a warm server on a CPU, so that imports are paid once; fresh ones where CUDA is
used, which does not survive a fork."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

GRACE_SECONDS = 20.0  # a run that is told to stop may finish its step and save it


@dataclass
class Child:
    """A process and the pipe on which it answers."""

    process: BaseProcess
    answers: connection.Connection

    @property
    def pid(self) -> int:
        return self.process.pid or 0

    @property
    def exit_code(self) -> int:
        """Negative: the signal that killed it."""
        self.process.join()
        return self.process.exitcode or 0

    def said(self) -> list[Any]:
        """What it has said since the last call."""
        messages: list[Any] = []
        try:
            while self.answers.poll():
                messages.append(self.answers.recv())
        except EOFError:
            pass  # it has closed its end
        return messages

    def answer(self) -> Any:
        """What it said last; None if it died without a word."""
        return (self.said() or [None])[-1]

    def ask(self) -> None:
        """Asks it to stop: a run finishes its step and saves it."""
        if self.process.is_alive():
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Ends it and whatever it started."""
        if self.process.is_alive():
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                self.process.kill()


class Nursery:
    """Starts children, all in one way. preload: modules that the server imports once."""

    def __init__(self, *, cuda: bool, preload: Sequence[str]) -> None:
        self.context: SpawnContext | ForkServerContext = multiprocessing.get_context("spawn")
        if not cuda:
            self.context = multiprocessing.get_context("forkserver")
            self.context.set_forkserver_preload(list(preload))

    def start(self, target: Callable[..., None], *args: Any) -> Child:
        """Calls target(*args, answer) in a process of its own; answer is the writing end of a pipe."""
        reading, writing = self.context.Pipe(duplex=False)
        process = self.context.Process(target=target, args=(*args, writing))
        with without_main():
            process.start()
        writing.close()
        return Child(process, reading)


@contextmanager
def without_main() -> Iterator[None]:
    """Children run functions of importable modules only: the program's own script is not run again in each."""
    program = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program


def stop(children: Sequence[Child]) -> None:
    """Asks all to stop, waits, and ends those that do not; Ctrl-C meanwhile ends the waiting."""
    for child in children:
        child.ask()
    deadline = time.monotonic() + GRACE_SECONDS
    with suppress(KeyboardInterrupt):
        for child in children:
            child.process.join(max(deadline - time.monotonic(), 0.0))
    for child in children:
        child.kill()
        child.process.join()


def cpu_seconds() -> float:
    """CPU seconds of this process and of all that it started, the fork server and its children included (where /proc
    tells; elsewhere only those that have ended)."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        if int(fields[1]) == os.getpid():
            total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # utime, stime and its children's
    return total
