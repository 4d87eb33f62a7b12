"""Every key of the schema, those of parts that may be null included."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints


def leaves(kind: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of all keys that hold a value."""
    hints = get_type_hints(kind)
    for spec in fields(kind):
        hint = hints[spec.name]
        # a part that may be null has keys of its own; those of a mapping's entries are those of one of them
        parts = [part for part in (hint, *get_args(hint)) if is_dataclass(part)] if "dict" not in str(hint) else []
        if parts:
            yield from leaves(parts[0], f"{prefix}{spec.name}.")
        else:
            yield f"{prefix}{spec.name}"
