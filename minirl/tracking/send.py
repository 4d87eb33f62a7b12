"""`minirl sync`: a run's own files, sent to W&B after the fact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from minirl.compose import read
from minirl.config import ConfigError
from minirl.record import RunRecord, State
from minirl.tracking.designation import of_training
from minirl.tracking.kept import Kept
from minirl.tracking.wandb_run import WandbRun, require_key


def send(folder: Path) -> int:
    """Sends what the server lacks of the run at `folder`, whatever its tracker was; the number of rows sent.

    Raises ConfigError where there is no run or no key, record.Busy while it runs, and what the library raises where
    the server does not take it.
    """
    record = RunRecord(folder)
    if not record.path.exists():
        raise ConfigError(f"{folder}: no run.json there, so no run")
    require_key()
    with record.locked():
        config, facts, kept = read(folder / "config.yaml"), record.read(), Kept.of(folder)
        tracker = replace(config.tracker, name="wandb", mode="online")
        run = WandbRun.online(of_training(config, facts["identity"], facts), tracker, folder, kept.end)
        run.repeat(kept)
        run.finish(State(facts["state"]))
    return sum(row["version"] >= run.first for row in kept.rows)
