"""One W&B run: opened at the right place, told rows in order, finished. Raises whatever the library raises."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minirl.config import ConfigError, TrackerConfig
from minirl.record import State
from minirl.tracking.designation import Designation
from minirl.tracking.kept import Counts, Kept

INIT_SECONDS = 20.0  # for a server to answer before the run is recorded offline
FINISH_SECONDS = 60.0  # for the last rows to arrive before they are left to `minirl sync`
ARTIFACT_SECONDS = 3600.0  # the same where files were asked for
TRANSMIT_SECONDS = 5.0  # between two parcels of rows
SUMMARIES = {  # beside the last value, which every metric has
    "eval/avg": "max,last",
    "reward/mean": "max,last",
    "mismatch/kl_k3": "max,last",
    "optim/grad_norm": "max,last",
}
# as the library asks them itself
HISTORY = """query RunResumeStatus($project: String, $entity: String, $name: String!) {
  model(name: $project, entityName: $entity) { bucket(name: $name, missingOk: true) { historyTail } }
}"""
REWIND = """mutation RewindRun($runName: String!, $entity: String, $project: String, $metricValue: Float!) {
  rewindRun(input: {
    runName: $runName, entityName: $entity, projectName: $project, metricName: "_step", metricValue: $metricValue
  }) { rewoundRun { id } }
}"""
RESUMED = {"resume": "allow"}
SUPERSEDED = "superseded-"  # before the name of a W&B folder whose rows are all told again

log = logging.getLogger(__name__)


class Undelivered(Exception):
    """The server did not take what it was sent."""


class WandbRun:
    """Repeats rows with the version as the step. `first`: versions below it are on the server already."""

    def __init__(self, run: Any, first: int) -> None:
        self._run, self.first, self._takes_tables = run, first, True
        run.define_metric("version", hidden=True)
        run.define_metric("*", step_metric="version")
        for name, kept in SUMMARIES.items():
            run.define_metric(name, step_metric="version", summary=kept)

    @classmethod
    def offline(cls, designation: Designation, tracker: TrackerConfig, folder: Path) -> WandbRun:
        """Recorded in FOLDER/wandb. It is told every row, so what earlier processes recorded there is superseded."""
        _supersede(folder)
        return cls(_opened(designation, tracker, folder, mode="offline", **RESUMED), 0)

    @classmethod
    def online(cls, designation: Designation, tracker: TrackerConfig, folder: Path, version: int) -> WandbRun:
        """Goes on where the server's history ends. Raises where the server is away or refuses the key.

        Where the server has rows of `version` and later, which this run makes again, it is asked to cut them off. A
        server that cannot keeps its rows: each version is there once, as it was made first.
        """
        moment = _cut(designation, tracker, version)
        _supersede(folder)
        run = _opened(designation, tracker, folder, mode="online", **({"resume_from": moment} if moment else RESUMED))
        return cls(run, run.starting_step)

    def row(self, row: Mapping[str, Any]) -> None:
        """A finished row; the version's samples and histograms come before it."""
        values = {name: math.nan if value is None else value for name, value in row.items()}
        if row["version"] >= self.first:
            self._run.log(values, step=row["version"], commit=True)

    def samples(self, version: int, rows: Sequence[Mapping[str, object]]) -> None:
        """A table. The library asks the server about tables while it logs one; rows do not depend on the answer."""
        import wandb

        if version < self.first or not self._takes_tables:
            return
        columns: list[str | int] = list(dict.fromkeys(name for row in rows for name in row))
        cells = [[row.get(str(name)) for name in columns] for row in rows]
        try:
            self._run.log({"samples": wandb.Table(columns=columns, data=cells)}, step=version)
        except Exception as fault:
            self._takes_tables = False
            log.warning("W&B takes no tables (%s): samples.jsonl has them", " ".join(str(fault).split()))

    def histograms(self, version: int, counts: Counts) -> None:
        import numpy as np
        import wandb

        if version >= self.first:
            for name, (edges, numbers) in counts.items():
                drawn = wandb.Histogram(np_histogram=(np.array(numbers), np.array(edges)))
                self._run.log({f"histogram/{name}": drawn}, step=version)

    def repeat(self, kept: Kept) -> None:
        """What the files hold and W&B lacks."""
        for row in kept.rows:
            version = row["version"]
            if version in kept.samples:
                self.samples(version, kept.samples[version])
            self.histograms(version, kept.histograms.get(version, {}))
            self.row(row)

    def alert(self, title: str, text: str) -> None:
        self._run.alert(title=title, text=text, level="WARN")

    def artifact(self, kind: str, folder: Path) -> None:
        """A folder's files, as a version of the run's artifact of this kind."""
        import wandb

        parcel = wandb.Artifact(f"{self._run.id}-{kind}", type=kind)
        parcel.add_dir(str(folder))
        self._run.log_artifact(parcel)

    def finish(self, ending: State) -> None:
        """Raises Undelivered or TimeoutError where rows have not arrived."""
        self._run.summary["ending"] = ending.value
        self._run.finish(exit_code=0 if ending.is_result else 1)
        if not self._run.offline:
            _refuse_lost_rows(Path(self._run.dir).parent)


def require_key() -> None:
    """Raises ConfigError where there is no W&B key, or none that could be one: known before anything is trained."""
    import wandb

    wandb.setup(wandb.Settings(silent=True))
    try:
        found = wandb.login(prompt=False, verify=False)  # looks at the key's form only
    except wandb.errors.AuthenticationError as fault:
        raise ConfigError(f"tracker.mode=online: {' '.join(str(fault).split())}") from None
    if not found:
        raise ConfigError("tracker.mode=online needs a W&B key: set WANDB_API_KEY, or take tracker.mode=offline")


def _opened(designation: Designation, tracker: TrackerConfig, folder: Path, **how: Any) -> Any:
    import wandb

    git = designation.config["record"].get("git") or {}
    settings = wandb.Settings(
        console="off",  # log.txt has it
        silent=True,
        disable_git=True,  # which git says: the code's own revision is in the record
        git_commit=git.get("sha"),
        init_timeout=INIT_SECONDS,
        finish_timeout=ARTIFACT_SECONDS if tracker.artifacts else FINISH_SECONDS,
        finish_timeout_raises=True,
        x_file_stream_transmit_interval=TRANSMIT_SECONDS,
    )
    return wandb.init(
        id=designation.id,
        name=designation.name,
        group=designation.group,
        job_type=designation.job_type,
        tags=designation.tags,
        config=dict(designation.config),
        project=tracker.project,
        entity=tracker.entity,
        dir=folder,
        allow_val_change=True,  # a longer horizon is the same run
        reinit="create_new",  # else a second run of this process would be logged into the first
        settings=settings,
        **how,
    )


def _cut(designation: Designation, tracker: TrackerConfig, version: int) -> str | None:
    """The moment to resume from where the server had to drop rows, and did.

    Asked before the run is opened: one that the library has failed to open cannot be opened again by its process.
    """
    import wandb
    from wandb.sdk.lib.service.service_connection import WandbApiFailedError

    server = wandb.Api(timeout=int(INIT_SECONDS))._service_api  # what the library's own reports speak through
    place = {"project": tracker.project, "entity": tracker.entity}
    known = _rows_known(server.execute_graphql(HISTORY, variables=place | {"name": designation.id}))
    if known <= version:
        return None
    try:
        server.execute_graphql(REWIND, variables=place | {"runName": designation.id, "metricValue": version - 1.0})
    except WandbApiFailedError:
        log.warning("W&B keeps its first record of updates %d to %d: it cannot rewind", version, known - 1)
        return None
    return f"{designation.id}?_step={version - 1}"


def _rows_known(answer: Mapping[str, Any]) -> int:
    """The step after the last one in the server's history."""
    bucket = (answer.get("model") or {}).get("bucket") or {}
    tail = json.loads(bucket.get("historyTail") or "[]")
    return int(json.loads(tail[-1])["_step"]) + 1 if tail else 0


def _supersede(folder: Path) -> None:
    """Renames what earlier processes recorded, so that `wandb sync` does not send a row twice."""
    for earlier in [*folder.glob("wandb/run-*"), *folder.glob("wandb/offline-run-*")]:
        earlier.rename(earlier.with_name(SUPERSEDED + earlier.name))


def _refuse_lost_rows(folder: Path) -> None:
    """`finish` returns as if nothing were wrong where the server refused rows; the service's own log has it."""
    for path in folder.glob("logs/debug-internal.log"):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if "filestream: fatal error" in line:
                raise Undelivered(json.loads(line)["msg"].partition("fatal error: ")[2])
