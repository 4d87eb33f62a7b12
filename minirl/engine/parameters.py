"""What an engine must be given when it takes over weights: every name once, in its shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from minirl.types import Prompt

NOTHING_LOADED = -1  # the version of an engine before its first load, and after a failed one


@dataclass(frozen=True)
class Signature:
    """Parameters and persistent buffers of a model. required: what a load must bring; of tied parameters one name is
    enough."""

    architecture: str
    shapes: dict[str, torch.Size]
    required: frozenset[str]

    @classmethod
    def of(cls, model: PreTrainedModel) -> Signature:
        shapes = {name: values.shape for name, values in model.state_dict().items()}
        tied = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        required = shapes.keys() - tied | {name for name, _ in model.named_parameters()}
        return cls(type(model).__name__, shapes, frozenset(required))

    def checked(self, parameters: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The same parameters, one at a time. Raises ValueError at one that is unknown or misshapen, and at the end
        if one was missing: half a load is nobody's version."""
        missing = set(self.required)
        for name, values in parameters:
            if name not in self.shapes:
                raise ValueError(f"parameter {name} is unknown to {self.architecture} of the engine")
            if values.shape != self.shapes[name]:
                raise ValueError(f"{name}: expected shape {list(self.shapes[name])}, found {list(values.shape)}")
            missing.discard(name)
            yield name, values
        if missing:
            raise ValueError(f"parameters missing for the engine: {', '.join(sorted(missing))}")


def refuse_nothing(version: int, prompts: Sequence[Prompt]) -> None:
    """No weights, no prompts, an empty prompt: nothing to sample from."""
    if version == NOTHING_LOADED:
        raise RuntimeError("the engine holds no parameters: call load_parameters before generate")
    empty = [prompt.position for prompt in prompts if not prompt.tokens]
    if empty or not prompts:
        raise ValueError(f"expected prompts of at least one token each; found none at positions {empty}")
