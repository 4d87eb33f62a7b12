"""How a run's process ended, and the record that is set right where the process could not do so itself."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from minirl.record import Busy, RunRecord, State
from minirl.sweep.job import LOG, Answer

BUSY = "busy"  # another process works on the run
INTERRUPTED = "stopped by Ctrl-C: repeat the command to go on"
LOG_LINES = 4
SILENT_SECONDS = 300.0  # twenty signs of life that did not come


@dataclass(frozen=True)
class Ending:
    """How a job ended. answer: what its process said, None if nothing; manner: in words, how it went without one."""

    answer: Answer | None
    manner: str


def conclude(folder: Path, identification: dict[str, Any], job: str, ending: Ending) -> str:
    """The state of the run whose job has ended: a `State`, or "busy". job: its name in the record.

    The process writes its own record. It cannot where it was killed, nor before its record began.
    """
    record, answer = RunRecord(folder), ending.answer
    before = record.read()
    mine = before.get("job") == job
    if answer is not None and answer.error == Busy.__name__:
        return BUSY
    if mine and before["state"] != State.running:
        return State(before["state"])
    if answer is None or answer.state is None:
        state = State.failed
        reason = f"{answer.error}: {answer.reason}" if answer else ending.manner
    else:
        state = State(answer.state)
        reason = INTERRUPTED if state is State.interrupted else ""
    known = state.is_result and before.get("state") == state  # it had its result before this process began
    if not known:
        changes = {"state": state, "reason": reason or None, "job": job, "ended": time.time()}
        record.update(**identification | {"host": socket.gethostname()} | (before if mine else {}) | changes)
    return state


class Life(StrEnum):
    """Whether a run that its record calls running is being run."""

    alive = "alive"
    gone = "gone"
    unknown = "unknown"  # on another host, and silent for long


def life(run: RunRecord) -> Life:
    """On this host the run's lock tells. Another host's locks may not be seen here, so its signs of life tell too."""
    record = run.read()
    if record.get("state") != State.running:
        return Life.gone
    if record["host"] == socket.gethostname():
        return Life.alive if _exists(record["pid"]) and not run.is_abandoned() else Life.gone
    return Life.alive if run.silence() < SILENT_SECONDS else Life.unknown


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it exists, and is another user's
    return True


def manner_of_death(exit_code: int) -> str:
    """In words, for a process that left no answer."""
    if exit_code >= 0:
        return f"its process ended with exit code {exit_code} and without a word"
    name = signal.Signals(-exit_code).name
    return f"its process was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def last_words(folder: Path) -> list[str]:
    """The end of the run's log."""
    path = folder / LOG
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    return [line for line in lines if line.strip()][-LOG_LINES:]
