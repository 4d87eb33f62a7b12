"""Where vLLM runs beside the trainer: who has an instance, how weights reach it, whose prompts it answers.

Every placement sends by the same calls in the same order: start, update, finish with a version.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from torch import Tensor

from minirl.config import ConfigError, EngineConfig, Placement
from minirl.engine.responses import Response
from minirl.types import Prompt
from minirl.world import World

Named = Iterable[tuple[str, Tensor]]
Ask = Callable[[Sequence[Prompt]], list[Response]]


class Place(Protocol):
    """What a rank has to do with vLLM. serves: whether vLLM is to be started in this process."""

    serves: bool

    def settings(self) -> dict[str, Any]:
        """What vllm.LLM is built with because of where it runs."""
        ...

    def connect(self, llm: Any, expected: Named) -> None:
        """Makes the way of the weights. llm: None where this rank does not serve · expected: names, shapes and dtypes
        of what every load sends, without values, in its order."""
        ...

    def send(self, named: Named, version: int) -> None:
        """start, update, finish with the version. Collective: reading `named` gathers parameters over all ranks."""
        ...

    def respond(self, prompts: Sequence[Prompt], group_size: int, ask: Ask) -> list[Response]:
        """The responses to this rank's prompts, group after group. ask: answers prompts where this rank serves."""
        ...


class Colocated:
    """vLLM in the trainer's own processes, on the trainer's devices. `engine.tensor_parallel` ranks in a row are one
    engine: each holds a slice of its weights, all sample the same responses to the prompts of all of them."""

    serves = True

    def __init__(self, engine: EngineConfig, world: World) -> None:
        self.num_members, self.world = engine.tensor_parallel or 1, world

    def settings(self) -> dict[str, Any]:
        from minirl.engine.vllm_worker import BACKEND

        launched = {"distributed_executor_backend": "external_launcher"} if "RANK" in os.environ else {}
        return {"tensor_parallel_size": self.num_members, **launched, "weight_transfer_config": transfer(BACKEND)}

    def connect(self, llm: Any, expected: Named) -> None:
        self.llm = llm
        llm.init_weight_transfer_engine({"init_info": {}})

    def send(self, named: Named, version: int) -> None:
        """Tensors are passed by reference and copied one at a time; a rank keeps its slice."""
        self.llm.start_weight_update()
        self.llm.update_weights({"update_info": {"named": named}})  # ends the session if it fails
        self.llm.finish_weight_update(weight_version=str(version))

    def respond(self, prompts: Sequence[Prompt], group_size: int, ask: Ask) -> list[Response]:
        if self.num_members == 1:
            return ask(prompts)
        first = self.world.rank - self.world.rank % self.num_members
        members = self.world.gather(prompts)[first : first + self.num_members]
        return divided(ask(joint(members)), members, group_size)[self.world.rank - first]


class Separate:
    """vLLM in processes of its own, on the GPUs behind the trainer's on rank 0's node. Rank 0 owns it; weights are
    broadcast by NCCL, parameter by parameter, through the trainer's side of vLLM's own weight transfer."""

    def __init__(self, engine: EngineConfig, world: World) -> None:
        self.num_gpus, self.world = engine.tensor_parallel or 1, world
        self.serves = world.rank == 0

    def settings(self) -> dict[str, Any]:
        from minirl.engine.vllm_worker import OWNER

        os.environ[OWNER] = str(os.getpid())  # vLLM's processes inherit it
        first = num_local_ranks()
        return {
            "tensor_parallel_size": self.num_gpus,
            "distributed_executor_backend": "mp",
            "device_ids": list(range(first, first + self.num_gpus)),
            "weight_transfer_config": transfer("nccl"),
        }

    def connect(self, llm: Any, expected: Named) -> None:
        from minirl.engine.vllm_transfer import Broadcast

        self.broadcast = Broadcast(llm, expected, num_receivers=self.num_gpus, rank=self.world.rank)

    def send(self, named: Named, version: int) -> None:
        self.broadcast.send(named, version)

    def respond(self, prompts: Sequence[Prompt], group_size: int, ask: Ask) -> list[Response]:
        members = self.world.gather(prompts)
        parts = divided(ask(joint(members)), members, group_size) if self.serves else None
        return self.world.scatter(parts)


PLACES: dict[Placement, Callable[[EngineConfig, World], Place]] = {
    Placement.colocated: Colocated,
    Placement.separate: Separate,
}


def place(engine: EngineConfig, world: World) -> Place:
    """The place that the configuration names."""
    return PLACES[engine.placement or Placement.colocated](engine, world)


def transfer(backend: str) -> Any:
    from vllm.config.weight_transfer import WeightTransferConfig

    return WeightTransferConfig(backend=backend)


def joint(members: Sequence[Sequence[Prompt]]) -> list[Prompt]:
    return [prompt for prompts in members for prompt in prompts]


def divided(
    responses: Sequence[Response], members: Sequence[Sequence[Prompt]], group_size: int
) -> list[list[Response]]:
    """The responses of each member, of all members' one after another."""
    parts, begin = list[list[Response]](), 0
    for prompts in members:
        parts.append(list(responses[begin : begin + group_size * len(prompts)]))
        begin += group_size * len(prompts)
    return parts


def num_local_ranks() -> int:
    """Trainer processes on this node, as torchrun tells them."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def refuse_few_devices(engine: EngineConfig, num_devices: int) -> None:
    """num_devices: GPUs that torch sees on this node."""
    if engine.placement is not Placement.separate:
        return
    if num_devices == 0:
        raise ConfigError(
            "engine.placement=separate: weights travel from GPU to GPU (NCCL), and torch sees no GPU here; use "
            "engine.placement=colocated"
        )
    needed = num_local_ranks() + (engine.tensor_parallel or 1)
    if num_devices < needed:
        raise ConfigError(
            f"engine.placement=separate: {num_local_ranks()} GPUs of the trainer and engine.tensor_parallel="
            f"{engine.tensor_parallel} of vLLM are {needed}, torch sees {num_devices}: start fewer ranks, or use "
            "engine.placement=colocated"
        )
