"""The trainer's end of vLLM's weight transfer over NCCL. Imports vLLM, so it is imported where vLLM is in use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
from vllm.utils.network_utils import get_open_port

LOOPBACK = "127.0.0.1"  # vLLM's GPUs are in the node of rank 0


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


class Broadcast:
    """Rank 0 of the trainer and `num_receivers` GPUs of vLLM. llm: None on the other ranks, which only join in the
    gathering of parameters."""

    def __init__(self, llm: Any, expected: Iterable[tuple[str, Tensor]], *, num_receivers: int, rank: int) -> None:
        self.source, self.client = Outgoing(expected), Client(llm)
        end = NCCLTrainerInitInfo(
            master_address=LOOPBACK,
            master_port=get_open_port() if rank == 0 else 0,
            world_size=1 + num_receivers,
            rank=rank,
        )
        self.trainer = WeightTransferTrainerFactory.trainer_init(end, client=self.client, source=self.source)

    def send(self, named: Iterable[tuple[str, Tensor]], version: int) -> None:
        self.source.named, self.client.version = named, str(version)
        self.trainer.send_weights()
