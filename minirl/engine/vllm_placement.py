"""Where vLLM runs beside the trainer: who has an instance, how weights reach it, whose prompts it answers.

Every placement sends by the same calls in the same order: start, update, finish with a version.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from minirl.config import ConfigError, EngineConfig, Placement
from minirl.engine.cuda_handles import HANDLES
from minirl.engine.responses import Response
from minirl.types import Prompt
from minirl.world import World

if TYPE_CHECKING:
    from minirl.engine.vllm_transfer import Sender

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
        self.members, self.world = neighbours(world, engine.tensor_parallel or 1), world

    def settings(self) -> dict[str, Any]:
        from minirl.engine.vllm_worker import BACKEND

        launched = {"distributed_executor_backend": "external_launcher"} if "RANK" in os.environ else {}
        return {"tensor_parallel_size": len(self.members), **launched, "weight_transfer_config": transfer(BACKEND)}

    def connect(self, llm: Any, expected: Named) -> None:
        self.llm = llm
        llm.init_weight_transfer_engine({"init_info": {}})

    def send(self, named: Named, version: int) -> None:
        """Tensors are passed by reference and copied one at a time; a rank keeps its slice."""
        self.llm.start_weight_update()
        self.llm.update_weights({"update_info": {"named": named}})  # ends the session if it fails
        self.llm.finish_weight_update(weight_version=str(version))

    def respond(self, prompts: Sequence[Prompt], group_size: int, ask: Ask) -> list[Response]:
        if len(self.members) == 1:
            return ask(prompts)
        members = self.world.gather(prompts)[self.members.start : self.members.stop]
        return divided(ask(joint(members)), members, group_size)[self.members.index(self.world.rank)]


class Apart:
    """vLLM in processes of its own, one for each of `devices`, GPUs of this node by number. The first of `members`, a
    row of ranks, owns it and asks it for all of them; weights take the way of `backend`, through the trainer's side of
    vLLM's own transfer."""

    sender: Sender

    def __init__(self, world: World, *, members: range, devices: range, backend: str) -> None:
        self.world, self.members, self.devices, self.backend = world, members, devices, backend
        self.serves, self.row = world.rank == members[0], world.row(len(members))

    def settings(self) -> dict[str, Any]:
        from minirl.engine.vllm_worker import OWNER

        os.environ[OWNER] = str(os.getpid())  # vLLM's processes inherit it
        return {
            "tensor_parallel_size": len(self.devices),
            "distributed_executor_backend": "mp",
            "device_ids": list(self.devices),
            "weight_transfer_config": transfer(self.backend),
        }

    def send(self, named: Named, version: int) -> None:
        self.sender.send(named, version)

    def respond(self, prompts: Sequence[Prompt], group_size: int, ask: Ask) -> list[Response]:
        if len(self.members) == 1:
            return ask(prompts)
        members = self.world.gather(prompts)[self.members.start : self.members.stop]
        answers = self.world.together(lambda: ask(joint(members)) if self.serves else None)
        return self.world.scatter(None if answers is None else divided(answers, members, group_size), self.row)


class Separate(Apart):
    """On the GPUs behind the trainer's on rank 0's node, for all ranks. Rank 0 broadcasts weights by NCCL, parameter by
    parameter."""

    def __init__(self, engine: EngineConfig, world: World) -> None:
        first, num_gpus = num_local_ranks(), engine.tensor_parallel or 1
        super().__init__(world, members=range(world.size), devices=range(first, first + num_gpus), backend="nccl")

    def connect(self, llm: Any, expected: Named) -> None:
        from minirl.engine.vllm_transfer import broadcast

        self.sender = broadcast(llm, expected, num_receivers=len(self.devices), rank=self.world.rank)


class Shared(Apart):
    """On the trainer's GPUs: those of `engine.tensor_parallel` ranks in a row are one engine's. Each rank lays weights
    into a buffer that the worker on its GPU reads (CUDA IPC), chunk by chunk."""

    def __init__(self, engine: EngineConfig, world: World) -> None:
        members = neighbours(world, engine.tensor_parallel or 1)
        first = members[0] % num_local_ranks()
        super().__init__(world, members=members, devices=range(first, first + len(members)), backend=HANDLES)

    def connect(self, llm: Any, expected: Named) -> None:
        from minirl.engine.vllm_transfer import handed_over

        self.sender = handed_over(llm, expected, rank=self.members.index(self.world.rank))


PLACES: dict[Placement, Callable[[EngineConfig, World], Place]] = {
    Placement.colocated: Colocated,
    Placement.separate: Separate,
    Placement.shared: Shared,
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


def neighbours(world: World, size: int) -> range:
    """The row of `size` ranks that this one is in."""
    first = world.rank - world.rank % size
    return range(first, first + size)


def num_local_ranks() -> int:
    """Trainer processes on this node, as torchrun tells them."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def refuse_few_devices(engine: EngineConfig, num_devices: int) -> None:
    """num_devices: GPUs that torch sees on this node."""
    placement, ranks, size = engine.placement, num_local_ranks(), engine.tensor_parallel or 1
    if placement is None or placement is Placement.colocated:
        return
    if num_devices == 0:
        raise ConfigError(
            f"engine.placement={placement}: weights travel from GPU to GPU, and torch sees no GPU here; use "
            "engine.placement=colocated"
        )
    if placement is Placement.shared and ranks % size:
        raise ConfigError(
            f"engine.tensor_parallel={size}: with engine.placement=shared an engine is on GPUs of one node, and its "
            f"{ranks} ranks cannot be cut into engines of {size}"
        )
    if placement is Placement.separate and num_devices < ranks + size:
        raise ConfigError(
            f"engine.placement=separate: {ranks} GPUs of the trainer and engine.tensor_parallel={size} of vLLM are "
            f"{ranks + size}, torch sees {num_devices}: start fewer ranks, or use engine.placement=colocated"
        )
