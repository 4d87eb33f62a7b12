"""How a run's process ended, and the record that is set right where the process could not do so itself."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

from minirl.record import Busy, RunRecord, State
from minirl.sweep.job import LOG, Answer

BUSY = "busy"  # another process works on the run
INTERRUPTED = "stopped by Ctrl-C: repeat the command to go on"
LOG_LINES = 4


def conclude(folder: Path, identification: dict[str, Any], pid: int, exit_code: int, answer: Answer | None) -> str:
    """The state of the run whose process `pid` has ended: a `State`, or "busy".

    The process writes its own record. It cannot where it was killed, nor before its record began.
    """
    record = RunRecord(folder)
    before = record.read()
    mine = before.get("pid") == pid
    if answer is not None and answer.error == Busy.__name__:
        return BUSY
    if answer is None or answer.state is None:
        state = State.failed
        reason = f"{answer.error}: {answer.reason}" if answer else manner_of_death(exit_code)
    else:
        state = State(answer.state)
        reason = INTERRUPTED if state is State.interrupted else ""
    settled = mine and before["state"] != State.running
    known = state.is_result and before.get("state") == state  # it had its result before this process began
    if not settled and not known:
        changes = {
            "state": state,
            "reason": reason or None,
            "pid": pid,
            "host": socket.gethostname(),
            "ended": time.time(),
        }
        record.update(**identification | changes)
    return state


def is_alive(run: RunRecord) -> bool:
    """Whether the process that the record names as running exists and holds the run; one on another host is
    believed."""
    record = run.read()
    if record.get("state") != State.running:
        return False
    if record["host"] != socket.gethostname():
        return True
    try:
        os.kill(record["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it exists, and is another user's
    return not run.is_abandoned()


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
