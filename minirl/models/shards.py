"""Weights from a folder straight into the shards of a rank: each rank reads the rows it holds and no others."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import PreTrainedModel

from minirl.config import ConfigError
from minirl.models.sources import refuse, sources
from minirl.models.stored import stored_tensors


@torch.no_grad()
def fill(model: PreTrainedModel, folder: Path) -> None:
    """Every parameter and persistent buffer of `model` gets its values, converted to its own dtype, in place. Sharded
    ones (along their first axis) get their rows. Refuses a folder that leaves a weight to chance."""
    stored, state = sources(model, stored_tensors(folder), folder), model.state_dict()
    found = {name: [stored[each] for each in same if each in stored] for name, same in distinct(model).items()}
    refuse("missing keys", [name for name, held in found.items() if not held], folder)
    for name, (source, *_) in found.items():
        if tuple(source.shape) != tuple(state[name].shape):
            raise ConfigError(
                f"{folder}: mismatched keys in its weights: {name} is {list(source.shape)}, "
                f"the model's is {list(state[name].shape)}"
            )
        local, begin = rows_of(state[name])
        local.copy_(source.rows(begin, begin + (local.shape[0] if local.ndim else 1)))


def distinct(model: PreTrainedModel) -> dict[str, list[str]]:
    """Every parameter and persistent buffer by its (first) name: all names under which it goes, tied ones too."""
    by_tensor: dict[Tensor, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        by_tensor.setdefault(parameter, []).append(name)
    every = {names[0]: names for names in by_tensor.values()}
    parameters = {name for names in by_tensor.values() for name in names}
    return every | {name: [name] for name in model.state_dict() if name not in parameters}


def rows_of(value: Tensor) -> tuple[Tensor, int]:
    """This rank's part of a tensor, and at which row of the whole it begins."""
    if not isinstance(value, DTensor):
        return value, 0
    _, offset = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
    return value.to_local(), offset[0]
