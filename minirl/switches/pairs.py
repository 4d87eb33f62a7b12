"""Which arms of a sweep differ in one choice, and in which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from minirl.config import Config
from minirl.identity import coldstart_key, identity, identity_fields
from minirl.sweep.plan import PlannedArm

# of the algorithm each of the six choices is one, however many keys it is written with
CHOICES = ("advantage", "is_weight", "trust_region", "reject", "aggregation", "routing", "routing_missing")


@dataclass(frozen=True)
class Pair:
    """Two arms, and the choices in which they differ. same: they compute the same updates."""

    first: str
    second: str
    differing: tuple[str, ...]
    same: bool


def pairs(arms: Sequence[PlannedArm]) -> list[Pair]:
    """Those that differ in one choice, and those that are one experiment; an arm that has no such partner beside the
    first one, whatever they differ in."""
    present = [arm for arm in arms if arm.excluded is None]
    every = [_pair(first, second) for first, second in combinations(present, 2)]
    found = [pair for pair in every if pair.same or len(pair.differing) == 1]
    met = {name for pair in found for name in (pair.first, pair.second)}
    lonely = [pair for pair in every if pair.first == present[0].arm.name and pair.second not in met]
    return [pair for pair in every if pair in found or pair in lonely]


def _pair(first: PlannedArm, second: PlannedArm) -> Pair:
    one, other = choices(first.config), choices(second.config)
    differing = tuple(key for key in dict.fromkeys([*one, *other]) if one.get(key) != other.get(key))
    start = coldstart_key(first.config) == coldstart_key(second.config)
    same = start and identity(first.config, "start") == identity(second.config, "start")
    return Pair(first.arm.name, second.arm.name, differing, same)


def choices(config: Config) -> dict[str, Any]:
    """What belongs to a run's identity, the six choices of the algorithm whole and every other key by itself."""
    tree = identity_fields(config)
    algo = tree.pop("algo")
    return {f"algo.{name}": algo.get(name) for name in CHOICES if name in algo} | dict(_leaves(tree, ""))


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
