"""How the trainer is spread over ranks: FSDP2, and over replicas of shards where there are several."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from minirl.models.outline import materialise
from minirl.policy.likelihood import Likelihood


def shard(likelihood: Likelihood, mesh: DeviceMesh, precision: MixedPrecisionPolicy, device: torch.device) -> None:
    """fully_shard on each decoder layer, then on the whole. The rest (embedding, final norm, head) is given back after
    each forward too, so that parameters read between passes are always the sharded ones. What was an outline gets
    memory for its shards afterwards, and no values."""
    decoder: Any = likelihood.model.base_model
    for layer in decoder.layers:
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(likelihood, mesh=mesh, mp_policy=precision, reshard_after_forward=True)
    materialise(likelihood, device)


def reduce_between_replicas(likelihood: Likelihood, *, now: bool) -> None:
    """Whether backward passes from here on add the gradients of all replicas together; within a replica they always
    do. Of a gradient that is accumulated over micro-batches the last one is enough."""
    for part in likelihood.modules():
        if isinstance(part, FSDPModule):
            part.set_requires_all_reduce(now, recurse=False)


def whole(value: Tensor) -> Tensor:
    """The full tensor of a parameter or buffer, detached."""
    value = value.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value
