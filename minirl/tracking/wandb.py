"""Weights & Biases: a mirror of metrics.jsonl. It may fail, be slow, be offline or be away; the run goes on."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from minirl.config import TrackerConfig
from minirl.metrics.collapse import collapse_onset
from minirl.record import State
from minirl.tracking.designation import Designation
from minirl.tracking.kept import Counts, Kept
from minirl.tracking.wandb_run import (
    ARTIFACT_SECONDS,
    FINISH_SECONDS,
    INIT_SECONDS,
    WandbRun,
    require_key,
)

ENDINGS = {  # what is worth an alert
    State.collapsed: "collapsed",
    State.diverged: "diverged",
    State.degenerate: "degenerated",
    State.failed: "failed",
}

log = logging.getLogger(__name__)


def newest_checkpoint(folder: Path) -> Path | None:
    """Of those in FOLDER/checkpoints, which are named by their version."""
    numbered = [path for path in folder.glob("checkpoints/*") if path.name.isdecimal()]
    return max(numbered, key=lambda path: int(path.name), default=None)


ARTIFACTS: dict[str, Callable[[Path], Path | None]] = {  # tracker.artifacts: which folder of the run is sent
    "checkpoint": newest_checkpoint,
    "rollouts": lambda folder: folder / "rollouts",
}


class WandbMirror:
    """Tells W&B every row, in a thread of its own: whatever the library or the server does, nobody waits for it until
    `close`, and there not for long. The first fault is told once, with how to send the run later.

    Raises ConfigError where W&B shall be online and there is no key.
    """

    def __init__(self, tracker: TrackerConfig, folder: Path, designation: Designation) -> None:
        self._tracker, self._folder, self._designation = tracker, folder, designation
        if tracker.mode == "online":
            require_key()
        self._run: WandbRun | None = None
        self._faulty = False
        self._watch = CollapseWatch(float(designation.config["metrics"]["collapse_margin"]))
        self._acts: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="wandb", daemon=True)
        self._thread.start()

    def begin(self, version: int) -> None:
        """The run starts at `version`: what the files hold of earlier ones is told where W&B lacks it."""
        kept = Kept.of(self._folder)
        self._acts.put(lambda: self._open(version, kept))

    def row(self, row: Mapping[str, Any]) -> None:
        self._tell(lambda run: self._row(run, row))

    def samples(self, version: int, rows: Sequence[Mapping[str, object]]) -> None:
        self._tell(lambda run: run.samples(version, rows))

    def histograms(self, version: int, counts: Counts) -> None:
        self._tell(lambda run: run.histograms(version, counts))

    def close(self, ending: str) -> None:
        self._tell(lambda run: self._finish(run, State(ending)))
        self._acts.put(None)
        patience = INIT_SECONDS + (ARTIFACT_SECONDS if self._tracker.artifacts else FINISH_SECONDS)
        self._thread.join(patience)
        if self._thread.is_alive():
            self._warn(f"no answer within {patience:.0f} s")

    def _open(self, version: int, kept: Kept) -> None:
        if self._tracker.mode == "online":
            try:
                self._run = WandbRun.online(self._designation, self._tracker, self._folder, version)
            except Exception as fault:  # the server is away, slow, or refuses the key
                self._warn(_line(fault))
        if self._run is None:
            self._run = WandbRun.offline(self._designation, self._tracker, self._folder)
        self._run.repeat(kept)
        for row in kept.rows:
            self._watch.sees(row)

    def _row(self, run: WandbRun, row: Mapping[str, Any]) -> None:
        run.row(row)
        onset = self._watch.sees(row)
        if onset is not None:
            text = f"eval/avg stays below its peak since update {onset}, by more than metrics.collapse_margin"
            run.alert(f"{self._designation.name} is collapsing", text)

    def _finish(self, run: WandbRun, ending: State) -> None:
        for kind in self._tracker.artifacts:
            folder = ARTIFACTS[kind](self._folder)
            if folder is not None and folder.is_dir():
                run.artifact(kind, folder)
        if ending in ENDINGS:
            run.alert(f"{self._designation.name} {ENDINGS[ending]}", f"run.json in {self._folder} says why")
        run.finish(ending)

    def _tell(self, act: Callable[[WandbRun], None]) -> None:
        def told() -> None:
            if self._run is not None:
                act(self._run)

        self._acts.put(told)

    def _work(self) -> None:
        """The thread: one act after another, until None. A mirror that breaks is put away, aloud."""
        while (act := self._acts.get()) is not None:
            try:
                act()
            except Exception as fault:  # whatever it is: the library talks to a service process and a server
                self._run = None
                self._warn(_line(fault))

    def _warn(self, problem: str) -> None:
        if not self._faulty:
            self._faulty = True
            text = "W&B failed (%s). The run goes on; metrics.jsonl is complete. To send it later: minirl sync %s"
            log.warning(text, problem, self._folder)


class CollapseWatch:
    """Tells once, at the evaluation that shows it, that a run is collapsing."""

    def __init__(self, margin: float) -> None:
        self._margin, self._told = margin, False
        self._seen: list[tuple[int, float, float]] = []

    def sees(self, row: Mapping[str, Any]) -> int | None:
        """The onset, the first time that this row's evaluation shows one."""
        if self._told or row.get("eval/avg") is None or row.get("eval/se") is None:
            return None
        self._seen.append((row["version"], row["eval/avg"], row["eval/se"]))
        versions, scores, errors = zip(*self._seen, strict=True)
        onset = collapse_onset(versions, scores, errors, margin=self._margin)
        self._told = onset is not None
        return onset


def _line(fault: Exception) -> str:
    return f"{type(fault).__name__}: {' '.join(str(fault).split())}"
