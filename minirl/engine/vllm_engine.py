"""mu on vLLM: weights in, responses out, by the same calls wherever vLLM runs.

The facts about vLLM are in four files: what one instance is built with and answers (`vllm_server`), where it runs
(`vllm_placement`, with the trainer's end of a transfer to other processes in `vllm_transfer`), and its worker
(`vllm_worker`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from minirl.config import ConfigError, EngineConfig, Numerics, Placement
from minirl.engine.matmuls import matrices, quantised_weights, rounded_weight
from minirl.engine.numerics import ROUNDINGS
from minirl.engine.parameters import NOTHING_LOADED, Signature, refuse_nothing
from minirl.engine.responses import Response, Routers, joined
from minirl.engine.served_names import served_names
from minirl.engine.vllm_placement import place, refuse_few_devices
from minirl.engine.vllm_server import BUILT_FOR, DTYPES, Elsewhere, LocalServer, Server, installed, started
from minirl.models.families.registry import is_mixture
from minirl.models.tape import RoutingTape
from minirl.types import Prompt, RolloutBatch, Sampling
from minirl.world import World

# what of vLLM.LLM is used, and not in every release
METHODS = (
    "init_weight_transfer_engine",
    "start_weight_update",
    "update_weights",
    "finish_weight_update",
    "get_weight_version",
    "reset_prefix_cache",
    "collective_rpc",
    "sleep",
    "wake_up",
)
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # runs side by side must not be pinned to the same cores
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
# colocated vLLM takes tensors by reference, so it must be in this process; the others must not
OWN_PROCESS = {Placement.colocated: "0", Placement.separate: "1", Placement.shared: "1"}
CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
FP8_CAPABILITY = (8, 9)
# whose loader writes parameters past the transfer session; only the in-process transfer knows better
COLOCATED_ONLY = ("gpt_oss",)


def require(engine: EngineConfig) -> None:
    """Raises ConfigError where the installed vLLM, or this machine, cannot do what is asked, before a model is read."""
    if find_spec("vllm") is None:
        raise ConfigError(
            "engine=vllm: vLLM is not installed in this environment; on a GPU machine `pip install 'minirl[vllm]'`, "
            "on a CPU see docs/engines.md, or use engine=torch"
        )
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = OWN_PROCESS[engine.placement or Placement.colocated]
    vllm: Any = __import__("vllm")
    missing = [name for name in METHODS if not hasattr(vllm.LLM, name)]
    if missing:
        raise ConfigError(
            f"engine=vllm: the installed vLLM {installed()} has no LLM.{', LLM.'.join(missing)}; minirl is built for "
            f"vLLM {BUILT_FOR}: pip install 'vllm=={BUILT_FOR}.*'"
        )
    if engine.numerics not in DTYPES:
        raise ConfigError(f"engine.numerics={engine.numerics}: vLLM has no such format; engine=torch emulates it")
    if engine.numerics is Numerics.fp8 and not fp8_is_native():
        raise ConfigError(
            "engine.numerics=fp8: this device does not compute in fp8 (it takes a GPU of compute capability 8.9 or "
            "more); use engine.numerics=fp8_weights, or engine=torch, which emulates fp8"
        )
    refuse_few_devices(engine, torch.cuda.device_count())


def refuse_model(model: PreTrainedModel, engine: EngineConfig, device: torch.device) -> None:
    """vLLM's attention on a CPU is compiled for a few sizes; heads are shared out whole; some families need a way of
    loading that only one placement has."""
    config = model.config.to_dict()
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    if device.type == "cpu" and size not in CPU_HEAD_DIMS:
        sizes = ", ".join(map(str, CPU_HEAD_DIMS))
        raise ConfigError(f"model.head_dim={size}: on a CPU vLLM takes one of {sizes}; or use engine=torch")
    if heads % (engine.tensor_parallel or 1):
        raise ConfigError(f"engine.tensor_parallel={engine.tensor_parallel}: must divide the {heads} attention heads")
    if engine.placement is not Placement.colocated and model.config.model_type in COLOCATED_ONLY:
        raise ConfigError(
            f"engine.placement={engine.placement}: vLLM loses parameters of {model.config.model_type} on the way; use "
            "engine.placement=colocated"
        )


def fp8_is_native() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= FP8_CAPABILITY


class VllmEngine:
    """mu on the architecture of `model`, whose weights are not kept. Every method is collective over all ranks.

    version: of the parameters it holds, -1 before the first load, after a failed one, and asleep.
    """

    def __init__(self, model: PreTrainedModel, *, engine: EngineConfig, world: World) -> None:
        require(engine)
        refuse_model(model, engine, world.device)
        self.device, self.engine, self.version = world.device, engine, NOTHING_LOADED
        self.signature, self.rounding = Signature.of(model), ROUNDINGS[engine.numerics].weights
        self.rounded = quantised_weights(model) if engine.numerics is Numerics.fp8_weights else {}
        self.matrices, self.dtype = matrices(model), getattr(torch, DTYPES[engine.numerics])
        self.routers, self.names = routers_of(model), served_names(model.config.model_type)
        self.place = place(engine, world)
        llm: Any = None
        self.server: Server = Elsewhere()
        if self.place.serves:
            llm = started(model, engine, self.routers, world.device, self.place.settings())
            self.server = LocalServer(llm, self.routers, world.device)
        blank = {name: torch.empty_like(value, device="meta") for name, value in model.state_dict().items()}
        self.place.connect(llm, self._outgoing(blank.items()))

    @torch.no_grad()
    def load_parameters(self, parameters: Iterable[tuple[str, Tensor]], version: int) -> None:
        """start, update, finish: every parameter is copied, rounded anew where the numerics round; matrices travel in
        the engine's own dtype."""
        self.version = NOTHING_LOADED
        self.server.wake("weights")
        self.place.send(self._outgoing(parameters), version)
        self.server.wake("kv_cache", "scheduling")
        self.server.accept(version)
        self.version = version

    def _outgoing(self, parameters: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
        for name, values in self.signature.checked(parameters):
            if name in self.rounded:
                values = rounded_weight(values.float(), self.rounding, self.rounded[name])
            if name in self.matrices:
                values = values.to(self.dtype)
            yield from self.names(name, values)

    @torch.no_grad()
    def generate(self, prompts: Sequence[Prompt], sampling: Sampling, group_size: int) -> RolloutBatch:
        """Samples, and joins what came back with the prompts."""
        refuse_nothing(self.version, prompts)
        ask = partial(self._answers, sampling=sampling, group_size=group_size)
        return joined(
            prompts,
            self.place.respond(prompts, group_size, ask),
            group_size=group_size,
            version=self.version,
            eos=sampling.eos,
            routers=self.routers,
            device=self.device,
        )

    def _answers(self, prompts: Sequence[Prompt], sampling: Sampling, group_size: int) -> list[Response]:
        """Of this rank's instance, to the prompts of all ranks that it serves: they are refused together."""
        self._refuse_long(prompts, sampling)
        return self.server.respond(prompts, sampling=sampling, group_size=group_size, version=self.version)

    def _refuse_long(self, prompts: Sequence[Prompt], sampling: Sampling) -> None:
        """vLLM would cut such a response earlier than sampling.max_response_tokens says."""
        longest = max(len(prompt.tokens) for prompt in prompts)
        if longest + sampling.max_response_tokens > (self.engine.max_sequence_tokens or 0):
            raise ConfigError(
                f"engine.max_sequence_tokens={self.engine.max_sequence_tokens} cannot hold a prompt of {longest} "
                f"tokens and {sampling.max_response_tokens} response tokens: use more"
            )

    def rest(self) -> None:
        """The KV cache and the weights leave the device until the next load."""
        if self.engine.sleep:
            self.server.sleep()
            self.version = NOTHING_LOADED

    def close(self) -> None:
        """Ends vLLM; a colocated one takes the default process group for its own, and ends that too."""
        self.server.close()


def routers_of(model: PreTrainedModel) -> Routers | None:
    """None for a dense model."""
    if not is_mixture(model.config.to_dict()):
        return None
    tape = RoutingTape(model)
    return Routers(tape.layers, tape.num_experts, tape.top_k)
