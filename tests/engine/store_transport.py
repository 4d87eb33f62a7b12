"""vLLM's weight transfer over NCCL with NCCL itself replaced by vLLM's TCP store, for machines without a GPU. Imported
by the trainer's side and, as `worker_extension_cls`, in vLLM's worker."""

from typing import Any

import torch
from torch import Tensor
from vllm.distributed.utils import StatelessProcessGroup
from vllm.distributed.weight_transfer import nccl_common

from minirl.engine.vllm_worker import WorkerExtension  # noqa: F401  (what vLLM's worker asks this module for)


class StoreCommunicator:
    """What vLLM uses of a PyNcclCommunicator."""

    def __init__(self, group: Any) -> None:
        self.group = group

    def broadcast(self, tensor: Tensor, src: int, stream: None) -> None:
        sends = self.group.rank == src
        received = self.group.broadcast_obj(tensor if sends else None, src)
        if not sends:
            tensor.copy_(received)

    def destroy(self) -> None: ...


def joined(master_address: str, master_port: int, rank: int, world_size: int, device: object) -> StoreCommunicator:
    group = StatelessProcessGroup.create(host=master_address, port=master_port, rank=rank, world_size=world_size)
    return StoreCommunicator(group)


nccl_common.stateless_init_process_group = joined
torch.cuda.current_stream = lambda: None
torch.accelerator.current_device_index = lambda: 0
