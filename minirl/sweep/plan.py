"""From a design to cells: every arm composed, validated and identified before the first run starts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from minirl import hub
from minirl.compose import override, typed
from minirl.config import Config, ConfigError
from minirl.identity import coldstart_key, direction, identity
from minirl.models.content import content_hash
from minirl.record import run_folder, write_atomically
from minirl.suggest import for_key, schema_keys
from minirl.sweep.expand import SEED, Arm, Design
from minirl.sweep.file import Exclusion, Overrides
from minirl.sweep.preflight import check_updates, claims_of
from minirl.validate import select, validate

PLAN = "sweep.json"

Compose = Callable[[Sequence[str]], DictConfig]


@dataclass(frozen=True)
class PlannedArm:
    """An arm that composes. overrides: all that a person would type for it, less seed and names. excluded: why it is
    not run, if it is not."""

    arm: Arm
    overrides: Overrides
    config: Config
    notes: tuple[str, ...]
    excluded: str | None


@dataclass(frozen=True)
class Cell:
    """One run of the sweep. same_as: the earlier arm that is the very same experiment: its run is shown twice.
    overrides: what the run is started with; folder: where its results are, beside sweep.json."""

    arm: str
    seed: int
    identity: str | None
    folder: str | None
    overrides: Overrides
    same_as: str | None
    excluded: str | None

    @property
    def runs(self) -> bool:
        """Whether it has a run of its own."""
        return self.same_as is None and self.excluded is None


def plan_arms(design: Design, compose: Compose) -> list[PlannedArm]:
    """The pre-flight. Raises ConfigError with a line for every arm that cannot be run, or for a claim that no run can
    answer."""
    claims = claims_of(design)
    planned, problems = [], defaultdict[str, list[str]](list)
    for arm in design.arms:
        try:
            planned.append(_plan_arm(design, arm, compose))
        except ConfigError as error:
            for line in str(error).splitlines():
                problems[line].append(arm.name)
    if problems:
        raise ConfigError("\n".join(_where(arms, len(design.arms)) + line for line, arms in problems.items()))
    check_updates(claims, {each.arm.name: each.config.num_updates for each in planned if each.excluded is None})
    return planned


def _where(arms: Sequence[str], of: int) -> str:
    """Which arms a problem is of; nothing where it is of all."""
    return "" if len(arms) == of else f"{'arm' if len(arms) == 1 else 'arms'} {', '.join(map(repr, arms))}: "


def _plan_arm(design: Design, arm: Arm, compose: Compose) -> PlannedArm:
    overrides = design.overrides(arm)
    config = typed(compose(_started(design, arm, overrides, design.seeds[0])))
    excluded = next((rule.reason for rule in design.exclude if _applies(rule, config)), None)
    notes = [] if excluded else validate(config)
    return PlannedArm(arm, overrides, config, tuple(notes), excluded)


def _started(design: Design, arm: Arm, overrides: Overrides, seed: int) -> Overrides:
    """The overrides of a run, its place in the sweep included."""
    return (*overrides, f"{SEED}={seed}", override("run.name", arm.name), override("run.group", design.name))


def _applies(rule: Exclusion, config: Config) -> bool:
    """Rules look at the composed configuration, so they can name keys that no arm sets."""
    known = schema_keys()
    for key in rule.when:
        if key not in known:
            raise ConfigError(f"exclude: {key}: no such key{for_key(key, ())}")
    return all(select(config, key) in values for key, values in rule.when.items())


def cells(design: Design, arms: Sequence[PlannedArm], starts: Mapping[str, str]) -> list[Cell]:
    """Seed after seed, every arm; so that the first seeds of all arms can be compared early.

    starts: coldstart_key -> content hash of the checkpoint.
    """
    first: dict[str, str] = {}
    for planned in arms:
        if planned.excluded is None:
            first.setdefault(_identity(planned, starts), planned.arm.name)
    return [_cell(design, planned, seed, starts, first) for seed in design.seeds for planned in arms]


def gone(planned_cells: Sequence[Cell]) -> dict[str, str]:
    """Arms without runs of their own -> why."""
    why = {cell.arm: f"excluded: {cell.excluded}" for cell in planned_cells if cell.excluded}
    return why | {cell.arm: f"the same as {cell.same_as}" for cell in planned_cells if cell.same_as}


def seeds_on_disk(folder: Path) -> set[int]:
    """Seeds of which the sweep's folder has runs."""
    found = {path.name.rpartition("-s")[2] for path in folder.glob("*-s*")}
    return {int(seed) for seed in found if seed.isdecimal()}


def _identity(planned: PlannedArm, starts: Mapping[str, str]) -> str:
    return identity(planned.config, starts[coldstart_key(planned.config)])


def _cell(design: Design, planned: PlannedArm, seed: int, starts: Mapping[str, str], first: Mapping[str, str]) -> Cell:
    name = planned.arm.name
    overrides = _started(design, planned.arm, planned.overrides, seed)
    if planned.excluded is not None:
        return Cell(name, seed, None, None, overrides, None, planned.excluded)
    found = _identity(planned, starts)
    place = sweep_folder(planned.config) / f"{found}-s{seed}"
    return Cell(name, seed, found, str(place), overrides, first[found] if first[found] != name else None, None)


def sweep_folder(config: Config) -> Path:
    """Where a sweep's runs lie; its name is all there is to know."""
    return run_folder(config, "").parent


def proportional(arms: Sequence[PlannedArm], starts: Mapping[str, str]) -> dict[str, str]:
    """arm -> the earlier arm whose gradient is the same up to a constant factor."""
    seen: dict[str, tuple[str, str]] = {}
    found = {}
    for planned in arms:
        if planned.excluded is not None:
            continue
        line = direction(planned.config, starts[coldstart_key(planned.config)])
        name, own = planned.arm.name, _identity(planned, starts)
        other = seen.setdefault(line, (name, own))
        if other[1] != own:
            found[name] = other[0]
    return found


def made_start(config: Config) -> Path | None:
    """The folder of the cold start of `config`, if it need not be made any more."""
    if config.coldstart.checkpoint is not None:
        found = hub.settings_path(config.coldstart.checkpoint)
        return found.parent if found is not None else None
    folder = Path(config.run.outputs) / "coldstarts" / coldstart_key(config)
    return folder if (folder / "coldstart.json").is_file() else None


def known_starts(arms: Sequence[PlannedArm]) -> dict[str, str]:
    """coldstart_key -> content hash; for a checkpoint that is still to be made its key stands in."""
    starts = {}
    for planned in arms:
        key, folder = coldstart_key(planned.config), made_start(planned.config)
        if key not in starts:
            starts[key] = content_hash(folder) if folder else key
    return starts


def write(design: Design, arms: Sequence[PlannedArm], planned_cells: Sequence[Cell]) -> Path:
    """sweep.json: what is planned, before anything runs. Returns the sweep's folder."""
    folder = sweep_folder(arms[0].config)
    folder.mkdir(parents=True, exist_ok=True)
    tree = {
        "name": design.name,
        "title": design.title,
        "scale": design.scale,
        "base": design.base,
        "fixed": design.fixed,
        "arms": {arm.name: arm.overrides for arm in design.arms},
        "seeds": list(dict.fromkeys(cell.seed for cell in planned_cells)),
        "claims": [OmegaConf.to_container(OmegaConf.create(dict(claim))) for claim in design.claims],
        "cells": [asdict(cell) for cell in planned_cells],
    }
    write_atomically(folder / PLAN, json.dumps(tree, indent=1, ensure_ascii=False) + "\n")
    return folder
