"""What differs between the arms of a sweep, and only that, from the configurations that really ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_type_hints

from minirl.config import Config
from minirl.report.read import Run, Sweep

# where a run lives and what it is called: always different, and never a cause
LABELS = ("seed", "algo.name", "model.name")
LABEL_GROUPS = ("run.", "tracker.")


@dataclass(frozen=True, slots=True)
class Difference:
    """One key. values: per arm the different values that its runs have, as text; more than one is a fault of the
    sweep's folder. in_identity: the key belongs to what the experiment is, by the schema."""

    key: str
    values: Mapping[str, tuple[str, ...]]
    in_identity: bool

    @property
    def mixed_arms(self) -> tuple[str, ...]:
        return tuple(arm for arm, values in self.values.items() if len(values) > 1)


def differences(sweep: Sweep) -> list[Difference]:
    """Keys whose value is not the same in all runs, in the order of the configuration."""
    runs = {arm.name: [run for run in arm.runs if run.config] for arm in sweep.distinct_arms}
    runs = {name: members for name, members in runs.items() if members}
    keys = dict.fromkeys(key for members in runs.values() for run in members for key in run.config)
    marked = identity_keys()
    found = []
    for key in keys:
        if key in LABELS or key.startswith(LABEL_GROUPS):
            continue
        values = {name: _values(key, members) for name, members in runs.items()}
        if len({value for texts in values.values() for value in texts}) > 1:
            found.append(Difference(key, values, marked.get(key, True)))
    return found


def _values(key: str, runs: list[Run]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(shown(run.config[key]) if key in run.config else "absent" for run in runs))


def shown(value: Any) -> str:
    """A value as a person types it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if not isinstance(value, float):
        return str(value)
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def identity_keys(schema: type = Config, prefix: str = "") -> dict[str, bool]:
    """Every key of the schema, and whether a run's identity depends on it."""
    marked: dict[str, bool] = {}
    hints: dict[str, Any] = get_type_hints(schema)
    for spec in fields(schema):
        kind, name = hints[spec.name], f"{prefix}{spec.name}"
        if isinstance(kind, type) and is_dataclass(kind):
            marked |= identity_keys(kind, f"{name}.")
        else:
            marked[name] = spec.metadata["identity"]
    return marked
