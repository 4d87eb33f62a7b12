"""Weights & Biases: a mirror of metrics.jsonl. It may fail, be offline or be away; the run goes on."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from minirl.config import Config, ConfigError
from minirl.record import RunRecord, State

INIT_SECONDS = 60.0  # for a server to answer before the run goes on offline
FINISH_SECONDS = 600.0  # for the last rows to arrive before they are left to `wandb sync`
BEST = ("eval/avg", "reward/mean")  # the maximum is kept beside the last value
RECORDED = ("sweep", "arm", "overrides", "horizons", "coldstart", "packages", "git")  # keys of run.json

log = logging.getLogger(__name__)


def designation(config: Config, identity: str) -> dict[str, Any]:
    """What W&B finds a run by. The id is a function of what the run is, so a resumed run is the same W&B run."""
    sweep, seed = config.run.group, config.seed
    parts = [*([sweep] if sweep else []), identity, f"s{seed}"]
    routing, numerics = config.algo.routing.value, config.engine.numerics.value
    switches = [config.algo.name, config.model.name, config.task.name, routing, numerics]
    return {
        "id": re.sub(r"[^A-Za-z0-9_-]", "-", "-".join(parts)),
        "name": f"{config.run.name or config.algo.name}-s{seed}",
        "group": sweep,
        "job_type": "train",
        "tags": list(dict.fromkeys([*config.tracker.tags, *switches, f"N{config.num_mini_batches}"])),
        "project": config.tracker.project,
        "entity": config.tracker.entity,
    }


def description(config: Config, identity: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """The resolved configuration as a nested dictionary; what code made the run is under `record`."""
    composed = OmegaConf.structured(config)
    resolved: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True, enum_to_str=True)
    return resolved | {"record": {"identity": identity} | {name: record[name] for name in RECORDED if name in record}}


class WandbMirror:
    """Repeats each row to W&B with the version as its step. Offline by default; `wandb sync` sends it later.

    A resumed run sends the rows after its checkpoint again: W&B keeps the first of each step online, and points of
    the same version lie on one another offline.
    """

    def __init__(self, config: Config, folder: Path, identity: str) -> None:
        problem = _server_problem() if config.tracker.mode == "online" else None
        self._run: Any = None
        self._folder = folder
        facts = designation(config, identity)
        facts["config"] = description(config, identity, RunRecord(folder).read())
        self._guarded(lambda: self._start("offline" if problem else config.tracker.mode, facts))
        if problem and self._run is not None:
            log.warning("W&B cannot be reached (%s). To send this run later: %s", problem, self._sync())

    def row(self, row: Mapping[str, object]) -> None:
        values = {name: math.nan if value is None else value for name, value in row.items()}
        self._tell(lambda run: run.log(values, step=row["version"]))

    def samples(self, version: int, rows: Sequence[Mapping[str, object]]) -> None:
        def tell(run: Any) -> None:
            import wandb

            columns: list[str | int] = list(dict.fromkeys(name for row in rows for name in row))
            cells = [[row.get(str(name)) for name in columns] for row in rows]
            run.log({"samples": wandb.Table(columns=columns, data=cells)}, step=version)

        self._tell(tell)

    def histograms(self, version: int, counts: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None:
        def tell(run: Any) -> None:
            import numpy as np
            import wandb

            for name, (edges, numbers) in counts.items():
                drawn = wandb.Histogram(np_histogram=(np.array(numbers), np.array(edges)))
                run.log({f"histogram/{name}": drawn}, step=version)

        self._tell(tell)

    def close(self, ending: str) -> None:
        def finish(run: Any) -> None:
            run.summary["ending"] = ending
            run.finish(exit_code=0 if State(ending).is_result else 1)

        self._tell(finish)
        self._run = None

    def _start(self, mode: str, facts: dict[str, Any]) -> None:
        import wandb

        start: Callable[..., Any] = partial(
            wandb.init,
            **facts,
            dir=self._folder,
            resume="allow",
            allow_val_change=True,  # a longer horizon is the same run
            reinit="create_new",  # else a second run of this process would be logged into the first
        )
        settings = wandb.Settings(
            console="off",  # log.txt has it
            silent=True,
            disable_git=True,  # the revision is in `record`
            init_timeout=INIT_SECONDS,
            finish_timeout=FINISH_SECONDS,
            finish_timeout_raises=True,
        )
        self._run = start(mode=mode, settings=settings)
        self._run.define_metric("version", hidden=True)
        self._run.define_metric("*", step_metric="version")
        for name in BEST:
            self._run.define_metric(name, step_metric="version", summary="max,last")

    def _tell(self, act: Callable[[Any], None]) -> None:
        run = self._run
        if run is not None:
            self._guarded(lambda: act(run))

    def _guarded(self, act: Callable[[], None]) -> None:
        """A mirror that breaks is put away, once and aloud: no fault of it may cost a training run."""
        try:
            act()
        except Exception as fault:  # whatever it is: the library talks to a service process and a server
            kept = f" To send what it holds: {self._sync()}" if self._run is not None else ""
            self._run = None
            problem = f"{type(fault).__name__}: {_line(fault)}"
            log.warning("W&B failed (%s). The run goes on; metrics.jsonl is complete.%s", problem, kept)

    def _sync(self) -> str:
        return f"wandb sync {Path(self._run.dir).parent}"


def _server_problem() -> str | None:
    """Why the server cannot take the run now (it is away, or refuses the key), if it cannot.

    Raises ConfigError where no key is set, or none that could be one: bad input, found before anything is trained.
    """
    import wandb

    wandb.setup(wandb.Settings(silent=True))
    try:
        found = wandb.login(prompt=False, verify=True)
    except wandb.errors.AuthenticationError as fault:
        problem = _line(fault)
    else:
        if not found:
            raise ConfigError("tracker.mode=online needs a W&B key: set WANDB_API_KEY, or take tracker.mode=offline")
        return None
    try:
        wandb.login(prompt=False, verify=False)  # looks at the key's form only
    except wandb.errors.AuthenticationError:
        raise ConfigError(f"tracker.mode=online: {problem}") from None
    return problem


def _line(fault: Exception) -> str:
    return " ".join(str(fault).split())
