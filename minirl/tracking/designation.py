"""What W&B finds a run by, and what it is told of it: names are functions of what the run is, so that a run that is
resumed, evaluated again or sent later is the same W&B run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from minirl.config import Config

RECORDED = ("sweep", "arm", "overrides", "horizons", "coldstart", "packages", "git")  # keys of run.json


@dataclass(frozen=True, slots=True)
class Designation:
    """id, name, group, job_type, tags: as in wandb.init · config: nested, as it was resolved."""

    id: str
    name: str
    group: str | None
    job_type: str
    tags: tuple[str, ...]
    config: Mapping[str, Any]


def of_training(config: Config, identity: str, record: Mapping[str, Any]) -> Designation:
    """record: run.json, which says what code the run was made by."""
    return Designation(
        id=_id(config.run.group, identity, f"s{config.seed}"),
        name=f"{_arm(config)}-s{config.seed}",
        group=config.run.group,
        job_type="train",
        tags=_tags(config),
        config=_described(config, identity, record),
    )


def of_evaluation(config: Config, name: str, record: Mapping[str, Any]) -> Designation:
    """name: of the file of its samples, which tells checkpoints and settings apart."""
    return Designation(
        id=_id(config.run.group, "eval", name),
        name=f"{_arm(config)}, evaluated: {name}",
        group=config.run.group,
        job_type="eval",
        tags=_tags(config),
        config=_described(config, name, record),
    )


def of_coldstart(config: Config, key: str) -> Designation:
    return Designation(
        id=_id("coldstart", key),
        name=f"cold start {key}",
        group=config.run.group,
        job_type="coldstart",
        tags=tuple(dict.fromkeys([*config.tracker.tags, config.model.name, config.task.name])),
        config=_described(config, key, {}),
    )


def _arm(config: Config) -> str:
    return config.run.name or config.algo.name


def _id(*parts: str | None) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", "-".join(part for part in parts if part))


def _tags(config: Config) -> tuple[str, ...]:
    switches = (config.algo.name, config.model.name, config.task.name, config.algo.routing, config.engine.numerics)
    return tuple(dict.fromkeys([*config.tracker.tags, *map(str, switches), f"N{config.num_mini_batches}"]))


def _described(config: Config, identity: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """The resolved configuration, the arm beside it (what a report groups by), and the code under `record`."""
    composed = OmegaConf.structured(config)
    resolved: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True, enum_to_str=True)
    facts = {"identity": identity} | {name: record[name] for name in RECORDED if name in record}
    return resolved | {"arm": _arm(config), "record": facts}
