"""What the shell offers for a half-typed word: sweeps, groups, keys, choices and values. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import Enum
from typing import Any, get_args, get_type_hints

PROGRAM = "_MINIRL_COMPLETE"  # the variable by which the shell asks


def overrides(incomplete: str) -> list[str]:
    """key= for a word without =, else key=value. bash cuts words at =, so it is given the part behind it only."""
    begun = _begun_in_bash()
    if begun is not None:
        key, value = begun
        return [text for text in values(key) if text.startswith(value)]
    key, equals, value = incomplete.partition("=")
    if equals:
        return [f"{key}={text}" for text in values(key) if text.startswith(value)]
    return [f"{name}=" for name in keys() if name.startswith(key)]


def _begun_in_bash() -> tuple[str, str] | None:
    """(key, value so far) where bash has split key=value in three words, or in two while the value is empty."""
    if os.environ.get(PROGRAM) != "complete_bash":
        return None
    words = os.environ.get("COMP_WORDS", "").split()
    index = int(os.environ.get("COMP_CWORD") or 0)
    if words[index : index + 1] == ["="]:
        return words[index - 1], ""
    if index >= 2 and words[index - 1] == "=":
        return words[index - 2], words[index] if index < len(words) else ""
    return None


def keys() -> list[str]:
    """Groups first, then every key of the schema."""
    from minirl.compose import groups
    from minirl.suggest import schema_keys

    return [*groups(), *schema_keys()]


def values(key: str) -> list[str]:
    """The choices of a group, or the words that a key takes."""
    from minirl.compose import choices, groups

    return list(choices(key)) if key in groups() else _words(key)


def _words(key: str) -> list[str]:
    from minirl.config import Config

    kind: Any = Config
    for name in key.split("."):
        hints = get_type_hints(kind) if isinstance(kind, type) else {}
        if name not in hints:
            return []
        kind = hints[name]
    for option in (kind, *get_args(kind)):
        if isinstance(option, type) and issubclass(option, Enum):
            return [str(member.value) for member in option]
    return ["true", "false"] if kind is bool else []


def sweep_files(incomplete: str) -> list[str]:
    from minirl.sweep.file import names

    return _starting(names(), incomplete)


def swept(incomplete: str) -> list[str]:
    from pathlib import Path

    from minirl.sweep.status import sweeps

    return _starting(sweeps(Path("outputs")), incomplete)


def groups(incomplete: str) -> list[str]:
    from minirl.compose import groups as known

    return _starting(known(), incomplete)


def _starting(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
