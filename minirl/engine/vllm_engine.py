"""mu on vLLM, in the trainer's own process: every fact about vLLM but those of its worker is in this file.

Weights go through vLLM's weight-transfer lifecycle (start, update, finish with a version), streamed from the trainer
one parameter at a time. Log-probabilities are `processed`: those of the distribution really sampled from.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from minirl.config import ConfigError, EngineConfig, Numerics
from minirl.engine.matmuls import quantised_weights
from minirl.engine.numerics import ROUNDINGS
from minirl.engine.parameters import NOTHING_LOADED, Signature, refuse_nothing
from minirl.engine.prefixes import Recorded, laid_out, share_prefixes
from minirl.engine.responses import Response, Routers, joined
from minirl.engine.served_names import served_names, served_settings
from minirl.models.families.registry import is_mixture
from minirl.models.tape import RoutingTape
from minirl.streams import stream_key
from minirl.types import Prompt, RolloutBatch, Sampling

BUILT_FOR = "0.32"
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
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine lives in this process, and takes tensors by reference
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # runs side by side must not be pinned to the same cores
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
CPU_BLOCK_TOKENS = 32  # the smallest block of the KV cache that the CPU kernels take; prefixes are shared by the block
CPU_STEP_TOKENS = 2048  # computed in one step, at least
FP8_CAPABILITY = (8, 9)
# fp8_weights is arithmetic in fp32 on weights that fp8 can hold: the same function as on the torch engine
DTYPES = {
    Numerics.fp32: "float32",
    Numerics.bf16: "bfloat16",
    Numerics.fp8_weights: "float32",
    Numerics.fp8: "bfloat16",
}


def installed() -> str | None:
    """The installed release, or None."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def require(engine: EngineConfig) -> None:
    """Raises ConfigError where the installed vLLM, or this machine, cannot do what is asked, before a model is read."""
    if find_spec("vllm") is None:
        raise ConfigError(
            "engine=vllm: vLLM is not installed in this environment; on a GPU machine `pip install 'minirl[vllm]'`, "
            "on a CPU see docs/engines.md, or use engine=torch"
        )
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
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


def refuse_head_dim(model: PreTrainedModel, device: torch.device) -> None:
    """vLLM's attention on a CPU is compiled for a few sizes."""
    config = model.config.to_dict()
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if device.type == "cpu" and size not in CPU_HEAD_DIMS:
        sizes = ", ".join(map(str, CPU_HEAD_DIMS))
        raise ConfigError(f"model.head_dim={size}: on a CPU vLLM takes one of {sizes}; or use engine=torch")


def fp8_is_native() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= FP8_CAPABILITY


class VllmEngine:
    """mu on the architecture of `model`, whose weights are not kept.

    version: of the parameters it holds, -1 before the first load, after a failed one, and asleep.
    """

    def __init__(self, model: PreTrainedModel, *, engine: EngineConfig, device: torch.device) -> None:
        require(engine)
        refuse_head_dim(model, device)
        self.device, self.engine = device, engine
        self.signature, self.rounding = Signature.of(model), ROUNDINGS[engine.numerics].weights
        self.rounded = quantised_weights(model) if engine.numerics is Numerics.fp8_weights else frozenset()
        self.routers, self.names = routers_of(model), served_names(model.config.model_type)
        self.version, self.asleep = NOTHING_LOADED, False
        self.llm = served(model, engine, self.routers, device)
        self.llm.init_weight_transfer_engine({"init_info": {}})
        self.routes = None if self.routers is None else route_source(self.llm, self.routers, device)

    @torch.no_grad()
    def load_parameters(self, parameters: Iterable[tuple[str, Tensor]], version: int) -> None:
        """start, update, finish: every parameter is copied, rounded anew where the numerics round; then the cache of
        prefixes, which belongs to the old weights, is emptied."""
        self.version = NOTHING_LOADED
        self._wake("weights")
        self.llm.start_weight_update()
        self.llm.update_weights({"update_info": {"named": self._outgoing(parameters)}})  # ends the session if it fails
        self.llm.finish_weight_update(weight_version=str(version))
        self._wake("kv_cache", "scheduling")
        self.asleep = False
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM kept its prefix cache after a weight update: it holds keys of the old weights")
        if self.llm.get_weight_version() != str(version):
            raise RuntimeError(f"vLLM holds weights {self.llm.get_weight_version()} after a load of version {version}")
        self.version = version

    def _outgoing(self, parameters: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
        for name, values in self.signature.checked(parameters):
            yield from self.names(name, self.rounding(values.float()) if name in self.rounded else values)

    @torch.no_grad()
    def generate(self, prompts: Sequence[Prompt], sampling: Sampling, group_size: int) -> RolloutBatch:
        """One request per response, each with its own seed, so that a response does not depend on its company."""
        refuse_nothing(self.version, prompts)
        self._refuse_long(prompts, sampling)
        if self.routes is not None:
            self.routes.begin()
        asked = [(prompt, j) for prompt in prompts for j in range(group_size)]
        outputs = self.llm.generate(
            [{"prompt_token_ids": list(prompt.tokens)} for prompt, _ in asked],
            [sampling_params(sampling, prompt.position, j) for prompt, j in asked],
            use_tqdm=False,
        )
        self._refuse_stale(outputs)
        experts = [None] * len(outputs) if self.routes is None else self.routes.of(outputs)
        batch = joined(
            prompts,
            [response(output, found, sampling) for output, found in zip(outputs, experts, strict=True)],
            group_size=group_size,
            version=self.version,
            eos=sampling.eos,
            routers=self.routers,
            device=self.device,
        )
        if not bool(batch.valid.all()):
            self.llm.collective_rpc("erase_keys_and_values")
        return batch

    def _refuse_long(self, prompts: Sequence[Prompt], sampling: Sampling) -> None:
        """vLLM would cut such a response earlier than sampling.max_response_tokens says."""
        longest = max(len(prompt.tokens) for prompt in prompts)
        if longest + sampling.max_response_tokens > (self.engine.max_sequence_tokens or 0):
            raise ConfigError(
                f"engine.max_sequence_tokens={self.engine.max_sequence_tokens} cannot hold a prompt of {longest} "
                f"tokens and {sampling.max_response_tokens} response tokens: use more"
            )

    def _refuse_stale(self, outputs: Sequence[Any]) -> None:
        spans = {span.version for output in outputs for span in output.outputs[0].weight_versions or ()}
        if spans != {str(self.version)}:
            raise RuntimeError(f"responses were sampled by weights {sorted(spans)}, expected version {self.version}")

    def rest(self) -> None:
        """The KV cache and the weights leave the device until the next load."""
        if self.engine.sleep and not self.asleep:
            self.llm.sleep(level=2)
            self.asleep, self.version = True, NOTHING_LOADED

    def _wake(self, *tags: str) -> None:
        if self.asleep:
            self.llm.wake_up(tags=list(tags))

    def close(self) -> None:
        """Ends vLLM, and with it the default process group, which it takes for its own."""
        self.llm.llm_engine.engine_core.shutdown()


class TappedRoutes:
    """Routes from our own tap in the worker: where vLLM's way of returning them does not run (CPU)."""

    def __init__(self, llm: Any, routers: Routers) -> None:
        self.llm, self.shape = llm, (len(routers.layers), routers.top_k)
        (layers,) = llm.collective_rpc("install_tap")
        if layers != routers.layers:
            raise RuntimeError(f"vLLM routes in layers {layers}, the trainer's model in {routers.layers}")

    def begin(self) -> None:
        """A prefix that was cached before this call has no routes left: they were handed out with that call's."""
        self.llm.reset_prefix_cache()
        self.llm.collective_rpc("collected_routes")

    def of(self, outputs: Sequence[Any]) -> list[Recorded]:
        """The worker knows a request by its id and a suffix."""
        (seen,) = self.llm.collective_rpc("collected_routes")
        by_request = {name.rpartition("-")[0]: pieces for name, pieces in seen.items()}
        found = [laid_out(by_request.get(output.request_id, []), self.shape) for output in outputs]
        share_prefixes([output.prompt_token_ids for output in outputs], found, CPU_BLOCK_TOKENS)
        return found


class ReturnedRoutes:
    """vLLM's `enable_return_routed_experts`: [prompt + response - 1, decoder layers, k], dense layers zero."""

    def __init__(self, routers: Routers) -> None:
        self.layers = list(routers.layers)

    def begin(self) -> None:
        """vLLM keeps the routes of cached prefixes itself."""

    def of(self, outputs: Sequence[Any]) -> list[Recorded]:
        rows = [output.outputs[0].routed_experts[:, self.layers] for output in outputs]
        return [Recorded(each, np.ones(len(each), bool)) for each in rows]


def route_source(llm: Any, routers: Routers, device: torch.device) -> TappedRoutes | ReturnedRoutes:
    return TappedRoutes(llm, routers) if device.type == "cpu" else ReturnedRoutes(routers)


def routers_of(model: PreTrainedModel) -> Routers | None:
    """None for a dense model."""
    if not is_mixture(model.config.to_dict()):
        return None
    tape = RoutingTape(model)
    return Routers(tape.layers, tape.num_experts, tape.top_k)


def served(model: PreTrainedModel, engine: EngineConfig, routers: Routers | None, device: torch.device) -> Any:
    """A vLLM engine of the model's architecture. Its weights are random until the first load: only the config goes
    through a folder."""
    try:
        from vllm import LLM
        from vllm.config.weight_transfer import WeightTransferConfig

        from minirl.engine import vllm_worker
    except ImportError as missing:
        raise ConfigError(
            f"engine=vllm: the installed vLLM {installed()} is not laid out as {BUILT_FOR} is ({missing}): "
            f"pip install 'vllm=={BUILT_FOR}.*'"
        ) from missing

    # vLLM seeds its caller's random state, and warns of what it uses itself
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model.config.save_pretrained(folder)
        return LLM(
            model=folder,
            runner="generate",
            # a config that no checkpoint holds names no class
            hf_overrides={"architectures": [type(model).__name__], **served_settings(model.config.model_type)},
            skip_tokenizer_init=True,
            load_format="dummy",
            generation_config="vllm",  # not the folder's: it may hold a temperature or a top-p of its own
            logprobs_mode="processed_logprobs",
            dtype=DTYPES[engine.numerics],
            seed=0,
            max_num_seqs=engine.max_sequences,
            max_model_len=engine.max_sequence_tokens,
            kv_cache_memory_bytes=(engine.cache_mib or 0) << 20,
            enable_prefix_caching=engine.prefix_caching,
            disable_log_stats=True,
            worker_extension_cls=f"{vllm_worker.__name__}.{vllm_worker.WorkerExtension.__name__}",
            weight_transfer_config=WeightTransferConfig(backend=vllm_worker.BACKEND),
            **by_device(engine, routers, device),
        )


def by_device(engine: EngineConfig, routers: Routers | None, device: torch.device) -> dict[str, Any]:
    """What is said differently on a GPU."""
    if device.type == "cpu":
        # a prompt in one piece: vLLM cannot seed a request here whose prompt is computed in several
        tokens = max(CPU_STEP_TOKENS, engine.max_sequences, engine.max_sequence_tokens or 0)
        pieces = {"enable_chunked_prefill": False, "max_num_batched_tokens": tokens}
        return {"enforce_eager": True, "block_size": CPU_BLOCK_TOKENS, **pieces}
    options = {"enable_sleep_mode": engine.sleep, "enable_return_routed_experts": routers is not None}
    return options | ({"quantization": "fp8"} if engine.numerics is Numerics.fp8 else {})


def sampling_params(sampling: Sampling, position: int, sample: int) -> Any:
    """Sample j of the prompt at a position, drawn by a seed of its own stream. EOS alone ends a response, and belongs
    to it; logprobs=0 asks for the sampled token's and no other's."""
    from vllm import SamplingParams

    return SamplingParams(
        temperature=sampling.temperature,
        max_tokens=sampling.max_response_tokens,
        seed=stream_key(sampling.seed, sampling.purpose, position, sample) % 2**63,
        stop_token_ids=[sampling.eos],
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
    )


def response(output: Any, found: Recorded | None, sampling: Sampling) -> Response:
    """One request's only completion."""
    completion = output.outputs[0]
    if completion.finish_reason not in ("stop", "length"):
        raise RuntimeError(f"vLLM ended a response by {completion.finish_reason!r}: expected stop or length")
    tokens = list(completion.token_ids)
    logprobs = [entry[token].logprob for token, entry in zip(tokens, completion.logprobs, strict=True)]
    if sampling.temperature == 0.0:  # vLLM reports those of temperature 1; greedy sampling has all mass on its choice
        logprobs = [value * 0.0 for value in logprobs]
    return Response(
        tokens=tokens,
        logprobs=logprobs,
        truncated=completion.finish_reason == "length",
        experts=None if found is None else found.experts,
        recorded=None if found is None else found.present,
    )
