"""Which stored tensors a parameter is made of: published folders name experts one by one, modules stack them.

The correspondence is transformers' own table, so that a family is read as `from_pretrained` reads it; what is ours is
that any rows of a parameter can be had without the others.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from minirl.config import ConfigError
from minirl.models.stored import Stored


class Source(Protocol):
    """A parameter as the folder holds it."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def rows(self, begin: int, end: int) -> Tensor:
        """[begin:end] along the first axis."""
        ...


@dataclass(frozen=True)
class Stacked:
    """parts[p][e] are matrices; row e of the parameter is all parts of expert e, one below the other: [E, sum m_p, h]
    of parts [m_p, h] each."""

    parts: tuple[tuple[Stored, ...], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        experts, (_, *rest) = len(self.parts[0]), self.parts[0][0].shape
        return experts, sum(part[0].shape[0] for part in self.parts), *rest

    def rows(self, begin: int, end: int) -> Tensor:
        if begin >= end:
            return torch.empty(0, *self.shape[1:])
        experts = zip(*(part[begin:end] for part in self.parts), strict=True)
        return torch.stack([torch.cat([each.rows(0, each.shape[0]) for each in expert]) for expert in experts])


@dataclass(frozen=True)
class Converted:
    """A parameter that transformers computes from several stored ones in another way: read whole, once per call."""

    name: str
    converter: WeightConverter
    stored: tuple[tuple[str, str, Stored], ...]
    model: PreTrainedModel

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.whole().shape)

    def whole(self) -> Tensor:
        converter = deepcopy(self.converter)
        for key, pattern, each in self.stored:
            values: Any = each.rows(0, each.shape[0] if each.shape else 1)
            converter.add_tensor(self.name, key, pattern, values)
        value: Any = converter.convert(self.name, model=self.model, config=self.model.config)[self.name]
        return value[0] if isinstance(value, list) else value

    def rows(self, begin: int, end: int) -> Tensor:
        return self.whole()[begin:end]


def sources(model: PreTrainedModel, stored: Mapping[str, Stored], folder: Path) -> dict[str, Source]:
    """By the module's name, of every parameter and persistent buffer that the folder holds. Raises ConfigError where
    it holds something that the model has no place for."""
    transforms = get_model_conversion_mapping(model)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    state = model.state_dict()
    found: dict[str, list[tuple[str, str | None]]] = defaultdict(list)
    for key in sorted(stored, key=dot_natural_key):
        name, pattern = rename_source_key(key, renamings, converters, model.base_model_prefix, state)
        found[name].append((key, pattern))
    refuse("unexpected keys", [name for name in found if name not in state and not ignored(model, name)], folder)
    made = {name: source(name, keys, by_pattern, stored, model) for name, keys in found.items() if name in state}
    uneven = [name for name, each in made.items() if isinstance(each, Stacked) and len(set(map(len, each.parts))) > 1]
    refuse("experts of which a part is missing", uneven, folder)
    return made


def source(
    name: str,
    keys: list[tuple[str, str | None]],
    by_pattern: Mapping[str, WeightConverter],
    stored: Mapping[str, Stored],
    model: PreTrainedModel,
) -> Source:
    """The one that `keys` (stored name, matching pattern; experts in their order) make."""
    (first, pattern) = keys[0]
    if pattern is None:
        return stored[first]
    converter = by_pattern[pattern]
    if not stacks(converter):
        named = tuple((key, each, stored[key]) for key, each in keys if each is not None)
        return Converted(name, converter, named, model)
    patterns = converter.source_patterns
    return Stacked(tuple(tuple(stored[key] for key, own in keys if own == each) for each in patterns))


def stacks(converter: WeightConverter) -> bool:
    """Whether it stacks matrices along a new first axis, and joins several stacks along the second."""
    kinds = [(type(each), each.dim) for each in converter.operations if isinstance(each, MergeModulelist | Concatenate)]
    several = len(converter.source_patterns) > 1
    return len(kinds) == len(converter.operations) and kinds == [(MergeModulelist, 0), (Concatenate, 1)][: 1 + several]


def ignored(model: PreTrainedModel, name: str) -> bool:
    """Whether the model's class says that its folders may hold this beside the weights."""
    patterns: Iterable[str] = model._keys_to_ignore_on_load_unexpected or ()
    return any(re.search(pattern, name) for pattern in patterns)


def refuse(what: str, names: Iterable[str], folder: Path) -> None:
    """One line with the first few of `names`, if there are any."""
    found = sorted(names)
    if found:
        raise ConfigError(f"{folder}: {what} in its weights: {', '.join(found[:3])}")
