"""The trainer's end of vLLM's weight transfers to other processes. Imported where vLLM is in use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

from torch import Tensor
from vllm.distributed.weight_transfer.base import ParamMeta, TrainerInitInfo, WeightSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
from vllm.utils.network_utils import get_open_port

from minirl.engine.cuda_handles import described

LOOPBACK = "127.0.0.1"  # vLLM's GPUs are in the node of rank 0
BUFFER_BYTES = 256 << 20  # through which weights reach an engine on the same GPU, at least


class Outgoing(WeightSource):
    """One load after another: `named` is set anew for each, and read once."""

    def __init__(self, expected: Iterable[tuple[str, Tensor]]) -> None:
        self.expected = [ParamMeta(name, value.dtype, tuple(value.shape)) for name, value in expected]
        self.named: Iterable[tuple[str, Tensor]] = ()

    def metadata(self) -> list[ParamMeta]:
        return self.expected

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self.named)


class Client:
    """The four calls that vLLM's trainer side makes, on an LLM. version: the stamp of the load in progress."""

    def __init__(self, llm: Any) -> None:
        self.llm, self.version = llm, ""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        self.llm.start_weight_update()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Blocks until all is received; vLLM's trainer side calls it beside the broadcast."""
        self.llm.update_weights({"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """vLLM's trainer side knows no version, so it is added here."""
        self.llm.finish_weight_update(weight_version=weight_version or self.version)


class HandleClient(Client):
    """vLLM's own clients pickle CUDA handles, which it refuses to read unless it is told to trust whatever comes
    (VLLM_ALLOW_INSECURE_SERIALIZATION); these need no trust."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Blocks until the buffer has been read; the next parameters are then written over it."""
        handles = {gpu: described(arguments) for gpu, arguments in update_info["ipc_handles"].items()}
        super().update_weights(update_info | {"ipc_handles": handles})


class Sender:
    """The trainer's side of a transfer. On ranks without an engine (llm: None in their client) it only joins in the
    gathering of parameters and of handles."""

    def __init__(self, end: TrainerInitInfo, client: Client, source: Outgoing) -> None:
        self.client, self.source = client, source
        self.trainer = WeightTransferTrainerFactory.trainer_init(end, client=client, source=source)

    def send(self, named: Iterable[tuple[str, Tensor]], version: int) -> None:
        self.source.named, self.client.version = named, str(version)
        self.trainer.send_weights()


def broadcast(llm: Any, expected: Iterable[tuple[str, Tensor]], *, num_receivers: int, rank: int) -> Sender:
    """Over NCCL, from rank 0 of the trainer to `num_receivers` GPUs of vLLM."""
    end = NCCLTrainerInitInfo(
        master_address=LOOPBACK,
        master_port=get_open_port() if rank == 0 else 0,
        world_size=1 + num_receivers,
        rank=rank,
    )
    return Sender(end, Client(llm), Outgoing(expected))


def handed_over(llm: Any, expected: Iterable[tuple[str, Tensor]], *, rank: int) -> Sender:
    """By CUDA IPC, from every rank to the worker of vLLM on its GPU, in a buffer that holds the largest parameter.
    rank: among those of its engine; the first tells vLLM where the buffers lie. Each rank learns the handles of all
    ranks, those of other engines too: a worker picks its GPU's."""
    source = Outgoing(expected)
    largest = max(meta.dtype.itemsize * prod(meta.shape) for meta in source.metadata())
    end = IPCTrainerInitInfo(rank=rank, packed=True, packed_buffer_size_bytes=max(largest, BUFFER_BYTES))
    return Sender(end, HandleClient(llm), source)
