"""A sweep's folder as plain values: its plan, and of every run what is there.

Reading is tolerant and says so: a torn last line, a missing cell or an unreadable file becomes a remark. Nothing is
filled in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from minirl.config import ConfigError
from minirl.record import State, code_version
from minirl.report.curves import Curve, carried_along, carried_forward, collect

MISSING = "missing"  # the state of a cell that was planned and never begun
UNREADABLE = "unreadable"  # the state of a run whose record cannot be read


@dataclass(frozen=True, slots=True)
class Run:
    """One (arm, seed). state: a `record.State`, "missing" or "unreadable". record: run.json · config: config.yaml,
    keys as typed on the command line · curves: by metric name, as recorded · remarks: what could not be read."""

    seed: int
    folder: Path
    state: str
    record: Mapping[str, Any]
    config: Mapping[str, Any]
    curves: Mapping[str, Curve]
    remarks: tuple[str, ...]

    @property
    def has_result(self) -> bool:
        """It came to an end of its own: only such a run enters statistics."""
        return self.state in set(State) and State(self.state).is_result

    @property
    def horizon(self) -> int:
        """The planned number of updates; for a run without a record, what it got to."""
        planned = self.record.get("num_updates") or self.config.get("num_updates")
        return int(planned) if planned else self.version

    @property
    def version(self) -> int:
        """The last version with a row."""
        return max((int(curve.versions[-1]) for curve in self.curves.values()), default=0)

    @property
    def stopped(self) -> bool:
        """It is a result, and ended before its plan: its last values stand for the rest."""
        return self.has_result and self.version < self.horizon

    @property
    def codes(self) -> tuple[str, ...]:
        """The versions of the code that worked on it, the first one first."""
        named = code_version(self.record)
        return tuple(self.record.get("codes") or ([named] if named else []))

    def curve(self, metric: str) -> Curve | None:
        """The metric's curve; of a run that stopped before its plan, with the last value carried forward."""
        recorded = self.curves.get(metric)
        return carried_forward(recorded, self.horizon) if recorded is not None and self.stopped else recorded


def abreast(runs: Sequence[Run], metric: str) -> list[Curve]:
    """The curves of those that have the metric; one that stopped goes on, with its last value, at the versions at which
    the others were measured."""
    known = [(run, curve) for run in runs if (curve := run.curve(metric)) is not None and len(curve)]
    if not known:
        return []
    versions = np.unique(np.concatenate([curve.versions for _, curve in known]))
    return [carried_along(run.curves[metric], versions) if run.stopped else curve for run, curve in known]


@dataclass(frozen=True, slots=True)
class Arm:
    """One line of the figure. same_as: the arm whose runs these are too · excluded: why it has none."""

    name: str
    overrides: tuple[str, ...]
    runs: tuple[Run, ...]
    same_as: str | None
    excluded: str | None

    @property
    def results(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.has_result)

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration of the first run that has one."""
        return next((run.config for run in self.runs if run.config), {})


@dataclass(frozen=True, slots=True)
class Sweep:
    """scale: the experiment= of all runs · base: the overrides that all arms share · claims: as written."""

    folder: Path
    name: str
    title: str
    scale: str | None
    base: tuple[str, ...]
    arms: Mapping[str, Arm]
    seeds: tuple[int, ...]
    claims: tuple[Mapping[str, Any], ...]

    @property
    def distinct_arms(self) -> tuple[Arm, ...]:
        """Those with runs of their own."""
        return tuple(arm for arm in self.arms.values() if arm.same_as is None and arm.excluded is None)

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(run for arm in self.distinct_arms for run in arm.runs)


def read_sweep(folder: Path) -> Sweep:
    """The sweep at `folder`, with every run that it planned."""
    path = folder / "sweep.json"
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{folder} holds no sweep.json: run `minirl sweep {folder.name}` first") from None
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path} is not JSON ({error}): repeat `minirl sweep {folder.name}`, it rewrites it"
        ) from None
    runs: dict[Path, Run] = {}
    return Sweep(
        folder=folder,
        name=plan["name"],
        title=plan.get("title") or plan["name"],
        scale=plan.get("scale"),
        base=tuple(plan.get("base", ())),
        arms={name: _arm(folder, name, overrides, plan["cells"], runs) for name, overrides in plan["arms"].items()},
        seeds=tuple(plan["seeds"]),
        claims=tuple(plan.get("claims") or ()),
    )


def _arm(folder: Path, name: str, overrides: list[str], cells: list[dict[str, Any]], runs: dict[Path, Run]) -> Arm:
    mine = [cell for cell in cells if cell["arm"] == name]
    present = [cell for cell in mine if not cell.get("excluded")]
    for cell in present:
        place = folder / Path(cell["folder"]).name  # beside sweep.json, also after the folder was moved
        if place not in runs:
            runs[place] = read_run(place, seed=int(cell["seed"]))
    return Arm(
        name=name,
        overrides=tuple(overrides),
        runs=tuple(runs[folder / Path(cell["folder"]).name] for cell in present),
        same_as=next((cell["same_as"] for cell in present if cell.get("same_as")), None),
        excluded=next((cell["excluded"] for cell in mine if cell.get("excluded")), None) if not present else None,
    )


def read_run(folder: Path, *, seed: int | None = None) -> Run:
    """The run at `folder`, as far as it got. `seed`: where the record does not say."""
    remarks: list[str] = []
    record = _record(folder / "run.json", remarks)
    return Run(
        seed=int(record.get("seed", seed if seed is not None else 0)),
        folder=folder,
        state=str(record.get("state", MISSING)),
        record=record,
        config=_config(folder / "config.yaml", remarks),
        curves=collect(_rows(folder / "metrics.jsonl", remarks)),
        remarks=tuple(remarks),
    )


def _record(path: Path, remarks: list[str]) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        remarks.append(f"{path.name} cannot be read: {error}")
        return {"state": UNREADABLE}


def _config(path: Path, remarks: list[str]) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return flat(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except yaml.YAMLError as error:
        remarks.append(f"{path.name} cannot be read: {error}".replace("\n", " "))
        return {}


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"train": {"optim": {"lr": 1}}} as {"train.optim.lr": 1}: keys as a person types them."""
    keys: dict[str, Any] = {}
    for name, value in tree.items():
        keys |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) and value else {f"{prefix}{name}": value}
    return keys


def _rows(path: Path, remarks: list[str]) -> list[dict[str, Any]]:
    """One row per version, ascending. A later row of the same version wins, and both facts are remarked."""
    if not path.exists():
        return []
    rows: dict[int, dict[str, Any]] = {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            version = int(row["version"])
        except (ValueError, TypeError, KeyError):
            torn = number == len(lines)
            remarks.append(f"{path.name}: {'the last line is torn' if torn else f'line {number} is no row'}, left out")
            continue
        if version in rows:
            remarks.append(f"{path.name}: version {version} appears twice, the later row counts")
        rows[version] = row
    return [rows[version] | {"version": version} for version in sorted(rows)]
