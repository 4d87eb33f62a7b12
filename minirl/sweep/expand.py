"""From a sweep file and a command to arms: arms x grid x what the command line asks for beside. Pure; no Hydra."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from typing import Any

from minirl.compose import override
from minirl.sweep.file import Exclusion, Overrides, SweepFile

SEED = "seed"


@dataclass(frozen=True)
class Request:
    """A command's own overrides. fixed: for every cell, stronger than the file. axes: key -> overrides, one per value
    asked for (`algo=minirl,grpo`). seeds: None for the file's. group: the sweep's folder, None for the usual one."""

    fixed: Overrides
    axes: Mapping[str, Overrides]
    seeds: tuple[int, ...] | None
    group: str | None


@dataclass(frozen=True)
class Arm:
    """One line of the figure. overrides: what sets it apart, on top of the design's base and under its fixed ones."""

    name: str
    overrides: Overrides


@dataclass(frozen=True)
class Design:
    """Everything a sweep is before anything is composed. scale: the `experiment=` whose block was applied. seeds: that
    the command asks for; file_seeds: that it would have had without asking."""

    name: str
    title: str
    scale: str
    base: Overrides
    fixed: Overrides
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    claims: tuple[Mapping[str, Any], ...]
    exclude: tuple[Exclusion, ...]
    file_seeds: tuple[int, ...]

    def overrides(self, arm: Arm) -> Overrides:
        """Base, arm, command: the later wins, and a key is said once."""
        return latest([*self.base, *arm.overrides, *self.fixed])


def latest(overrides: Iterable[str]) -> Overrides:
    """The last override of each key, in the order of these last ones."""
    kept: dict[str, str] = {}
    for line in overrides:
        key = line.partition("=")[0]
        kept.pop(key, None)
        kept[key] = line
    return tuple(kept.values())


def expand(file: SweepFile, scale: str, request: Request) -> Design:
    """The design of a sweep file at a scale, for a command."""
    part = file.at(scale)
    named = [Arm(name, (*own, *part.arms.get(name, ()))) for name, own in file.arms.items()]
    grid = {
        key: {name: f"{key}={written(value)}" for name, value in axis.items()}
        for key, axis in {**file.grid, **part.grid}.items()
    }
    return Design(
        name=request.group or file.name,
        title=file.title,
        scale=scale,
        base=latest([*file.base, *part.base]),
        fixed=request.fixed,
        arms=tuple(crossed(named, [*grid.values(), *asked(request)])),
        seeds=request.seeds or part.seeds or file.seeds,
        claims=file.claims if part.claims is None else part.claims,
        exclude=(*file.exclude, *part.exclude),
        file_seeds=part.seeds or file.seeds,
    )


def improvise(scale: str, request: Request) -> Design:
    """The design of a command without a file: every combination of what it asks for is an arm."""
    arms = crossed([Arm("", ())], asked(request))
    varied = [line for axis in request.axes.values() for line in axis]
    words = [*request.fixed, *varied]
    folder = "multirun-" + sha256("\n".join(sorted(words)).encode()).hexdigest()[:6]
    return Design(
        name=request.group or folder,
        title=" ".join(varied) or folder,
        scale=scale,
        base=(),
        fixed=request.fixed,
        arms=tuple(Arm(arm.name or "defaults", arm.overrides) for arm in arms),
        seeds=request.seeds or (0,),
        claims=(),
        exclude=(),
        file_seeds=(0,),
    )


def asked(request: Request) -> list[Mapping[str, str]]:
    """The axes of a command: each override is its own name."""
    return [{line: line for line in axis} for axis in request.axes.values()]


def crossed(arms: Iterable[Arm], axes: Iterable[Mapping[str, str]]) -> list[Arm]:
    """Every arm at every combination of the axes' overrides; names say what was added. axes: each name -> override."""
    return [
        Arm(
            ", ".join(filter(None, (arm.name, *(name for name, _ in added)))),
            (*arm.overrides, *(line for _, line in added)),
        )
        for arm in arms
        for added in product(*(axis.items() for axis in axes))
    ]


def written(value: Any) -> str:
    """A value of a grid in Hydra's override grammar."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return override("", value)[1:] if isinstance(value, str) else str(value)
