"""The file of a figure: arms, seeds, claims and what differs at a scale. Read strictly; a wrong key is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from minirl.compose import sweeps_dir
from minirl.config import ConfigError
from minirl.suggest import did_you_mean

KEYS = ("title", "base", "arms", "grid", "seeds", "claims", "exclude", "scales")
SCALE_KEYS = ("base", "arms", "grid", "seeds", "claims", "exclude")

Overrides = tuple[str, ...]


@dataclass(frozen=True)
class Exclusion:
    """Cells that are not run: those whose composed configuration has, for every key of `when`, one of its values."""

    when: Mapping[str, tuple[Any, ...]]
    reason: str


@dataclass(frozen=True)
class Scale:
    """What differs at one scale (`experiment=`): applied after the file's own base and arms. grid: other values under
    the names of the file's own. seeds, claims: None for the file's own; others for those that arms which are excluded
    leave undecidable."""

    base: Overrides = ()
    arms: Mapping[str, Overrides] = field(default_factory=dict)
    grid: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seeds: tuple[int, ...] | None = None
    claims: tuple[Mapping[str, Any], ...] | None = None
    exclude: tuple[Exclusion, ...] = ()


@dataclass(frozen=True)
class SweepFile:
    """name: of the file, and of the sweep's folder. arms: what makes a line of the figure. grid: every arm at every
    combination of these values; key -> what a value adds to an arm's name -> the value. claims: raw entries, see
    `minirl.report.grammar`."""

    name: str
    title: str
    base: Overrides
    arms: Mapping[str, Overrides]
    grid: Mapping[str, Mapping[str, Any]]
    seeds: tuple[int, ...]
    claims: tuple[Mapping[str, Any], ...]
    exclude: tuple[Exclusion, ...]
    scales: Mapping[str, Scale]

    def at(self, scale: str) -> Scale:
        """What the file says of a scale; nothing, if it says nothing."""
        return self.scales.get(scale, Scale())


def find(name: str) -> Path:
    """A sweep by the name of a file in sweeps/, or by a path. Raises ConfigError with the nearest names."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise ConfigError(f"{name}: no such file")
        return path
    known = names()
    if name not in known:
        raise ConfigError(f"{name}: no such sweep{did_you_mean(name, known)} (or give the path of a .yaml file)")
    return known[name]


def names() -> dict[str, Path]:
    """The sweeps that come with minirl."""
    return {path.stem: path for path in sorted(sweeps_dir().glob("*.yaml"))}


def read(path: Path) -> SweepFile:
    """The sweep file at `path`. Raises ConfigError, naming the file and the key."""
    try:
        loaded = OmegaConf.load(path)
    except (YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error
    tree = OmegaConf.to_container(loaded, resolve=False) if isinstance(loaded, DictConfig) else None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected a mapping with the keys {', '.join(KEYS)}")
    where = path.name
    _check_keys(where, tree, KEYS)
    if not tree.get("arms"):
        raise ConfigError(f"{where}: arms is missing: a name and a list of overrides for each line of the figure")
    arms = _arms(f"{where}: arms", tree["arms"])
    grid = _grid(f"{where}: grid", _mapping(tree, "grid"))
    scales = {
        name: _scale(f"{where}: scales.{name}", part, arms, grid) for name, part in _mapping(tree, "scales").items()
    }
    return SweepFile(
        name=path.stem,
        title=str(tree.get("title") or path.stem),
        base=_overrides(f"{where}: base", tree.get("base")),
        arms=arms,
        grid=grid,
        seeds=_seeds(f"{where}: seeds", tree.get("seeds")),
        claims=tuple(tree.get("claims") or ()),
        exclude=_exclusions(f"{where}: exclude", tree.get("exclude")),
        scales=scales,
    )


def _check_keys(where: str, tree: Mapping[Any, Any], known: tuple[str, ...]) -> None:
    for key in tree:
        if key not in known:
            raise ConfigError(f"{where}: {key} is no key of a sweep file{did_you_mean(str(key), known)}")


def _mapping(tree: Mapping[Any, Any], key: str) -> Mapping[Any, Any]:
    part = tree.get(key) or {}
    if not isinstance(part, Mapping):
        raise ConfigError(f"{key}: expected a mapping, found {part!r}")
    return part


def _arms(where: str, tree: Any) -> dict[str, Overrides]:
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{where}: expected a mapping of names to lists of overrides, found {tree!r}")
    return {str(name): _overrides(f"{where}.{name}", part) for name, part in tree.items()}


def _overrides(where: str, part: Any) -> Overrides:
    if part is None:
        return ()
    if not isinstance(part, list) or not all(isinstance(line, str) for line in part):
        raise ConfigError(f"{where}: expected a list of overrides such as [algo=grpo, group_size=16], found {part!r}")
    for line in part:
        if line.partition("=")[0] == "seed":
            raise ConfigError(f"{where}: {line} belongs into seeds: all arms share them")
    return tuple(part)


def _grid(where: str, tree: Mapping[Any, Any]) -> dict[str, dict[str, Any]]:
    return {str(key): _axis(f"{where}.{key}", str(key), part) for key, part in tree.items()}


def _axis(where: str, key: str, part: Any) -> dict[str, Any]:
    """Values by name: `[2, 4]` are named by key and value, `{low: 1.0e-4, high: 2.0e-4}` as they say."""
    if isinstance(part, Mapping) and part:
        return {str(name): value for name, value in part.items()}
    if not isinstance(part, list) or not part:
        raise ConfigError(f"{where}: expected a list of values or a mapping of names to values, found {part!r}")
    return {f"{key}={value}": value for value in part}


def _seeds(where: str, part: Any) -> tuple[int, ...]:
    seeds = [0] if part is None else part
    whole = isinstance(seeds, list) and all(isinstance(seed, int) and not isinstance(seed, bool) for seed in seeds)
    if not whole or not seeds or len(set(seeds)) != len(seeds):
        raise ConfigError(f"{where}: expected a list of different whole numbers, found {part!r}")
    return tuple(seeds)


def _exclusions(where: str, part: Any) -> tuple[Exclusion, ...]:
    form = "expected {when: {key: value or [values], ...}, reason: why}"
    found = []
    for rule in part or ():
        if not isinstance(rule, Mapping) or set(rule) != {"when", "reason"} or not isinstance(rule["when"], Mapping):
            raise ConfigError(f"{where}: {form}, found {rule!r}")
        when = {str(key): tuple(v) if isinstance(v, list) else (v,) for key, v in rule["when"].items()}
        found.append(Exclusion(when, str(rule["reason"])))
    return tuple(found)


def _scale(where: str, part: Any, arms: Mapping[str, Overrides], grid: Mapping[str, Mapping[str, Any]]) -> Scale:
    if not isinstance(part, Mapping):
        raise ConfigError(f"{where}: expected a mapping with the keys {', '.join(SCALE_KEYS)}, found {part!r}")
    _check_keys(where, part, SCALE_KEYS)
    changed = _arms(f"{where}.arms", part.get("arms") or {})
    for name in changed:
        if name not in arms:
            raise ConfigError(f"{where}.arms.{name}: no arm has this name{did_you_mean(name, arms)}")
    values = _grid(f"{where}.grid", part.get("grid") or {})
    for key, axis in values.items():
        if list(axis) != list(grid.get(key, ())):
            known = ", ".join(grid.get(key, ())) or "nothing"
            raise ConfigError(f"{where}.grid.{key}: the file's own grid names the values ({known}); use the same names")
    return Scale(
        base=_overrides(f"{where}.base", part.get("base")),
        arms=changed,
        grid=values,
        seeds=_seeds(f"{where}.seeds", part["seeds"]) if part.get("seeds") is not None else None,
        claims=tuple(part["claims"]) if part.get("claims") is not None else None,
        exclude=_exclusions(f"{where}.exclude", part.get("exclude")),
    )
