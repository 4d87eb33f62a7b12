"""Memory that is given back between phases: while an engine samples, the trainer's state may lie in host memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class Parked:
    """The memory of some tensors, of each rank its own part. Put away, they keep their identity (FSDP, the optimizer
    and views go on pointing to them) and hold nothing; they may not be read before they are brought back."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        local = [each.to_local() if isinstance(each, DTensor) else each for each in tensors]
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in local if each.numel()}
        self.storages = list(storages.values())
        self.sizes = [storage.nbytes() for storage in self.storages]
        self.host: list[Tensor] = []
        self.away = False

    def put_away(self) -> None:
        """Copies to host memory (page-locked, and kept for the next time), then gives the device's memory back."""
        if self.away:
            return
        if not self.host:
            self.host = [torch.empty(s.nbytes(), dtype=torch.uint8, pin_memory=s.is_cuda) for s in self.storages]
        for storage, copy in zip(self.storages, self.host, strict=True):
            copy.untyped_storage().copy_(storage)
            storage.resize_(0)
        self.away = True

    def bring_back(self) -> None:
        if not self.away:
            return
        for storage, copy, size in zip(self.storages, self.host, self.sizes, strict=True):
            storage.resize_(size)
            storage.copy_(copy.untyped_storage())
        self.away = False
