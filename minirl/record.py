"""The folder of a run and its record: who runs it, how it ended. Torch-free, so that status and sweep can read it."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Event, Thread
from typing import IO, Any

from minirl.config import Config, ConfigError

PACKAGES = ("torch", "transformers", "numpy", "hydra-core", "omegaconf", "wandb", "minirl")
LOCK = ".lock"  # in the run's folder; its time of change is the run's last sign of life
JOB = "MINIRL_JOB"  # environment variable: what a launcher calls the job that this process belongs to
BEAT_SECONDS = 15.0  # between two signs of life
PROBE_SECONDS = 1.0  # `is_abandoned` holds the lock for a moment: who finds it taken looks again for so long


class State(StrEnum):
    """How a run stands. Collapsed, diverged and degenerate are results; failed and interrupted ask to be repeated."""

    running = "running"
    finished = "finished"
    collapsed = "collapsed"
    diverged = "diverged"
    degenerate = "degenerate"
    failed = "failed"
    interrupted = "interrupted"

    @property
    def is_result(self) -> bool:
        return self in (State.finished, State.collapsed, State.diverged, State.degenerate)


class Busy(ConfigError):
    """Another process works on this run."""


def write_atomically(path: Path, text: str) -> None:
    """The file is either the old one or the new one, whenever the process dies."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def run_folder(config: Config, identity: str) -> Path:
    """Where a run lives: a pure function of what it is, so that repeating a command finds it again."""
    place = Path("sweeps", config.run.group) if config.run.group else Path("runs")
    return Path(config.run.outputs) / place / f"{identity}-s{config.seed}"


@dataclass(frozen=True)
class RunRecord:
    """`run.json` in the run's folder."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "run.json"

    def read(self) -> dict[str, Any]:
        """The record as last written; empty where the run has not begun."""
        return json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}

    def update(self, **changes: Any) -> None:
        """Rewrites the record with the given keys changed."""
        text = json.dumps(self.read() | changes, indent=2, ensure_ascii=False, allow_nan=False)
        write_atomically(self.path, text + "\n")

    def cpu_seconds(self) -> float:
        """Of all processes that have worked on the run: as the last one has recorded at its end, or as the rows say of
        the loop's phases, rows that were cut off included, where that is more: a killed process records nothing."""
        rows = sum(_cpu_seconds(self.folder / name) for name in ("metrics.jsonl", "metrics.cut.jsonl"))
        return max(self.read().get("cpu_seconds") or 0.0, rows)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Held while a process works on this run. The kernel drops the lock when the process dies, however it dies.
        While it is held the file is touched now and then, for those who cannot see the locks of another host."""
        self.folder.mkdir(parents=True, exist_ok=True)
        over = Event()
        with (self.folder / LOCK).open("w") as file:
            self._take(file)
            Thread(target=self._beat, args=(over,), daemon=True).start()
            try:
                yield
            finally:
                over.set()

    def _take(self, file: IO[str]) -> None:
        deadline = time.monotonic() + PROBE_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Busy(f"{self.folder} is being run by another process: wait for it, or stop it") from None
                time.sleep(PROBE_SECONDS / 20)

    def _beat(self, over: Event) -> None:
        while not over.wait(BEAT_SECONDS):
            try:
                os.utime(self.folder / LOCK)
            except FileNotFoundError:
                return  # somebody has thrown the run away

    def silence(self) -> float:
        """Seconds since the last sign of life of whoever holds this run."""
        try:
            return time.time() - (self.folder / LOCK).stat().st_mtime
        except FileNotFoundError:
            return float("inf")

    def is_abandoned(self) -> bool:
        """Whether this run was begun and no process holds it: that a process has the recorded number proves nothing,
        for numbers come again after a restart. Another host's locks may not be seen here."""
        try:
            with (self.folder / LOCK).open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (FileNotFoundError, BlockingIOError):
            return False
        return True


def _cpu_seconds(path: Path) -> float:
    """Of the complete rows of a file of metrics."""
    lines = path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines() if path.exists() else []
    return sum(value or 0.0 for line in lines for name, value in json.loads(line).items() if name.endswith("_cpu"))


def environment() -> dict[str, Any]:
    """What the run ran on: process, packages, and the code's revision where it is a checkout. job: as its launcher
    calls it, None for a process that a person started."""
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "pid": os.getpid(),
        "job": os.environ.get(JOB),
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "packages": packages,
        "git": _revision(),
        "started": time.time(),
    }


def code_version(record: Mapping[str, Any]) -> str | None:
    """The code that a record names, short: a revision (+ and a hash of the local changes), else the release."""
    git = record.get("git")
    if git is None:
        return (record.get("packages") or {}).get("minirl")
    return git["sha"][:8] + (f"+{git.get('changes') or '?'}" if git["dirty"] else "")


def _revision() -> dict[str, Any] | None:
    """sha, and what differs from it: dirty, and a hash of the changes to files that git knows."""
    here = Path(__file__).resolve().parents[1]
    if not (here / ".git").exists():
        return None
    try:
        sha, changes = (
            subprocess.run(["git", "-C", str(here), *words], capture_output=True, check=True).stdout
            for words in (["rev-parse", "HEAD"], ["diff", "HEAD", "--no-ext-diff"])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    digest = sha256(changes).hexdigest()[:8] if changes else None
    return {"sha": sha.decode().strip(), "dirty": bool(changes), "changes": digest}
