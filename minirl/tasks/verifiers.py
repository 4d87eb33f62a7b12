"""Verifier processes: what judges a strange answer may hang, crash or eat memory without this process noticing.

Plain child processes that speak JSON lines over pipes: no signals, so that any thread and any event loop may ask; no
fork of a process that holds a GPU; no pickles; and what hangs is killed.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from queue import LifoQueue
from typing import Any
from weakref import finalize

from minirl.config import ConfigError
from minirl.interfaces import VerifierError

PROGRAM = Path(__file__).with_name("verifier_process.py")
START_SECONDS = 120.0  # to import sympy on a busy machine
CLOCK_FACTOR = 10.0  # a request may take so many times its CPU limit by the clock: other processes want the cores too


class Process:
    """One verifier process."""

    def __init__(self, max_seconds: float, grader: str | None) -> None:
        self.max_seconds, self.num_asked, self.is_busy = max_seconds, 0, True
        # -P: the program's own folder is no place to import from
        command = [sys.executable, "-P", str(PROGRAM), str(max_seconds), *([grader] if grader else [])]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.unread = b""

    def start(self) -> None:
        """Waits until it can be asked. Raises VerifierError with what kept it from starting."""
        self.reply(START_SECONDS)

    def ask(self, request: Mapping[str, Any]) -> Any:
        assert self.child.stdin is not None
        self.num_asked, self.is_busy = self.num_asked + 1, True
        try:
            self.child.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            raise VerifierError("the verifier process has died") from None
        return self.reply(self.max_seconds * CLOCK_FACTOR)

    def reply(self, seconds: float) -> Any:
        """The value of the next line. Raises VerifierError if it is an error, or none comes in time."""
        assert self.child.stdout is not None
        until = time.monotonic() + seconds
        while b"\n" not in self.unread:
            ready, _, _ = select.select([self.child.stdout], [], [], max(until - time.monotonic(), 0.0))
            part = self.child.stdout.read(1 << 16) if ready else b""
            if not part:
                raise VerifierError(
                    f"the verifier process died, or took more than {self.max_seconds} s of CPU"
                    if ready
                    else f"no verdict within {seconds} s"
                )
            self.unread += part
        line, _, self.unread = self.unread.partition(b"\n")
        self.is_busy = False
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise VerifierError(found["error"])
        return found["value"]

    @property
    def is_usable(self) -> bool:
        """Alive, and no reply is outstanding (of a request that took too long, or was left by Ctrl-C)."""
        return not self.is_busy and self.child.poll() is None

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            assert pipe is not None
            pipe.close()


class Verifiers:
    """`num_workers` processes, started when they are first needed, replaced when one dies and after `max_gradings`
    requests (sympy keeps what it has seen). Any number of threads may ask: each waits for a free process."""

    def __init__(self, *, num_workers: int, max_seconds: float, max_gradings: int, grader: str | None) -> None:
        self.num_workers, self.max_seconds, self.max_gradings = num_workers, max_seconds, max_gradings
        self.grader = grader
        self.idle: LifoQueue[Process | None] = LifoQueue()
        for _ in range(num_workers):
            self.idle.put(None)
        self.running: set[Process] = set()
        finalize(self, _close, self.running)

    def ask(self, **request: Any) -> Any:
        """The reply to one request. Raises VerifierError."""
        process = self.idle.get()
        try:
            process = process or self._started()
            return process.ask(request)
        finally:
            self.idle.put(self._kept(process))

    def check(self) -> None:
        """Raises ConfigError where no verifier can be started; only a user's file must be run to know."""
        if self.grader is None:
            if find_spec("math_verify") is None:
                raise ConfigError("task=math needs the package math-verify: pip install minirl[math]")
            return
        process = self.idle.get()
        try:
            process = process or self._started()
        except VerifierError as error:
            raise ConfigError(f"task.grading.grader={self.grader}: {error}") from error
        finally:
            self.idle.put(process)

    def close(self) -> None:
        _close(self.running)

    def _started(self) -> Process:
        process = Process(self.max_seconds, self.grader)
        self.running.add(process)
        try:
            process.start()
        except VerifierError:
            self.running.discard(process)
            process.close()
            raise
        return process

    def _kept(self, process: Process | None) -> Process | None:
        """The process, if it is to be asked again."""
        if process is None or (process.is_usable and process.num_asked < self.max_gradings):
            return process
        self.running.discard(process)
        process.close()
        return None


def _close(running: set[Process]) -> None:
    """Ends all processes; also when the owner is forgotten, or this process ends."""
    while running:
        running.pop().close()
