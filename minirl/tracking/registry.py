"""Trackers by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from minirl.config import Config
from minirl.interfaces import Tracker
from minirl.record import RunRecord
from minirl.tracking.designation import Designation, of_training
from minirl.tracking.kept import Kept
from minirl.tracking.local import LocalTracker, Mirror
from minirl.tracking.wandb import WandbMirror
from minirl.tracking.wandb_run import require_key

MIRRORS: dict[str, tuple[type[WandbMirror], ...]] = {"local": (), "wandb": (WandbMirror,)}


class SilentTracker:
    """What ranks above 0 hold: the figures are the same on all ranks, and one of them tells."""

    def log(self, version: int, values: Mapping[str, float]) -> None: ...

    def write(self, version: int, values: Mapping[str, float]) -> None: ...

    def samples(self, version: int, rows: Sequence[Mapping[str, object]]) -> None: ...

    def histograms(self, version: int, counts: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None: ...

    def truncate(self, version: int) -> None: ...

    def close(self, ending: str) -> None: ...


def build(config: Config, folder: Path, identity: str, rank: int) -> Tracker:
    """The tracker named by `tracker.name` (validated); metrics.jsonl is written whatever the name.

    Raises ConfigError where W&B shall be online and there is no key.
    """
    if rank != 0:
        return SilentTracker()
    return LocalTracker(folder, _mirrors(config, folder, of_training(config, identity, RunRecord(folder).read())))


def build_aside(config: Config, folder: Path, designation: Designation, rank: int) -> Tracker:
    """For an evaluation on its own: its row is kept in `folder` only to be mirrored."""
    mirrors = _mirrors(config, folder, designation) if rank == 0 else []
    return LocalTracker(folder, mirrors) if mirrors else SilentTracker()


def announce(config: Config, folder: Path, designation: Designation, rank: int) -> None:
    """The rows of something that has ended and left them in FOLDER/metrics.jsonl: a cold start."""
    for mirror in _mirrors(config, folder, designation) if rank == 0 else []:
        mirror.begin(Kept.of(folder).end)
        mirror.close("finished")


def require(config: Config) -> None:
    """Raises ConfigError where W&B shall be online and there is no key."""
    if config.tracker.mode == "online":
        require_key()


def _mirrors(config: Config, folder: Path, designation: Designation) -> list[Mirror]:
    tracker = config.tracker
    return [] if tracker.mode == "disabled" else [of(tracker, folder, designation) for of in MIRRORS[tracker.name]]
