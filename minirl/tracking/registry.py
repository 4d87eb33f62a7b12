"""Trackers by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from minirl.config import Config, ConfigError
from minirl.interfaces import Tracker
from minirl.tracking.local import LocalTracker
from minirl.tracking.wandb import WandbMirror

MODES = {"local": ("disabled",), "wandb": ("offline", "online")}


class SilentTracker:
    """What ranks above 0 hold: the figures are the same on all ranks, and one of them tells."""

    def log(self, version: int, values: Mapping[str, float]) -> None: ...

    def write(self, version: int, values: Mapping[str, float]) -> None: ...

    def samples(self, version: int, rows: Sequence[Mapping[str, object]]) -> None: ...

    def histograms(self, version: int, counts: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None: ...

    def truncate(self, version: int) -> None: ...

    def close(self, ending: str) -> None: ...


def build(config: Config, folder: Path, identity: str, rank: int) -> Tracker:
    """The tracker named by `tracker.name`; metrics.jsonl is written whatever the name. Raises ConfigError."""
    name, mode = config.tracker.name, config.tracker.mode
    if name not in MODES:
        raise ConfigError(f"tracker.name={name}: expected one of {', '.join(MODES)}")
    if mode not in MODES[name]:
        where = "" if name == "wandb" else f" with tracker={name} (for W&B: tracker=wandb)"
        raise ConfigError(f"tracker.mode={mode}: expected {' or '.join(MODES[name])}{where}")
    if rank != 0:
        return SilentTracker()
    return LocalTracker(folder, [WandbMirror(config, folder, identity)] if name == "wandb" else [])
