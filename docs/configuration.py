"""The configuration page, made from the schema and conf/: `python docs/configuration.py`, or `make docs`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import Field, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from minirl.compose import choices, first_comment, groups, load
from minirl.config import Config

HEADER = """# Configuration

Generated from the schema (`minirl/config.py`) and `conf/`; do not edit: `make docs`.

`minirl run KEY=VALUE GROUP=CHOICE ...` takes any of these. `minirl show ...` prints what they compose to,
`minirl show --group algo` lists a group. The last writer wins: `conf/config.yaml`, then the chosen files of the groups,
then `experiment=` (the scale), then the command line. `null` is how "none" is spelled.

A key marked with a dot (·) does not belong to a run's identity: two runs that differ there only are the same
experiment. The rest is hashed, together with the content of the cold-start checkpoint, after switches that cannot
matter have been put aside; a run is that hash and a seed.
"""


def kind(hint: Any) -> str:
    """A type as a person writes its values."""
    if isinstance(hint, UnionType):
        return " or ".join("null" if part is NoneType else kind(part) for part in get_args(hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return ", ".join(member.value for member in hint)
    if is_dataclass(hint):
        return "the keys below"
    origin = get_origin(hint) or hint
    return {"str": "text", "bool": "true, false", "dict": "a mapping", "list": "a list"}.get(
        origin.__name__, origin.__name__
    )


def spelled(value: Any) -> str:
    """A value as it stands in a YAML file."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return str(value)


def row(name: str, spec: Field[Any], hint: Any, value: Any) -> str:
    mark = "" if spec.metadata["identity"] else " ·"
    return f"| `{name}`{mark} | {kind(hint)} | `{spelled(value)}` |"


def rows(config: Any, prefix: str) -> Iterator[str]:
    """One row per key of a part of the configuration, inner parts included."""
    hints = get_type_hints(type(config))
    for spec in fields(config):
        value, name = getattr(config, spec.name), f"{prefix}{spec.name}"
        if is_dataclass(value):
            yield from rows(value, f"{name}.")
            continue
        yield row(name, spec, hints[spec.name], value)
        for part in filter(is_dataclass, get_args(hints[spec.name])):  # null here, or the entries of a mapping
            inner = f"{name}.NAME" if get_origin(hints[spec.name]) is dict else name
            yield from unset_rows(part, f"{inner}.")


def unset_rows(schema: Any, prefix: str) -> Iterator[str]:
    """One row per key of a part that the default configuration does not have."""
    hints = get_type_hints(schema)
    for spec in fields(schema):
        mark = "" if spec.metadata["identity"] else " ·"
        yield f"| `{prefix}{spec.name}`{mark} | {kind(hints[spec.name])} | |"


def section(title: str, doc: str, lines: Iterable[str]) -> str:
    head = ["| key | values | default |", "|---|---|---|"]
    return "\n".join([f"## {title}", "", *([doc, ""] if doc else []), *head, *lines])


def described(part: Any) -> str:
    """The docstring of a schema class, if somebody wrote one (dataclasses makes one up otherwise)."""
    doc = type(part).__doc__ or ""
    return "" if doc.startswith(f"{type(part).__name__}(") else " ".join(doc.split())


def group_table() -> str:
    listed = []
    for group in groups():
        for name, path in choices(group).items():
            purpose = first_comment(path).replace("|", "\\|")  # a bar would end the cell
            listed.append(f"| `{group}={name}` | {purpose} |")
    return "\n".join(["## Groups", "", "| choice | what it is |", "|---|---|", *listed])


def page() -> str:
    config = load([])
    hints = get_type_hints(Config)
    parts = {spec.name: getattr(config, spec.name) for spec in fields(Config)}
    inner = {name: part for name, part in parts.items() if is_dataclass(part)}
    knobs = [
        row(spec.name, spec, hints[spec.name], parts[spec.name]) for spec in fields(Config) if spec.name not in inner
    ]
    sections = [section(f"{name}.*", described(part), rows(part, f"{name}.")) for name, part in inner.items()]
    return "\n\n".join([HEADER.rstrip(), group_table(), section("Seed and sizes", "", knobs), *sections]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
