"""What runs inside vLLM's worker. vLLM imports this module where the worker lives (`worker_extension_cls`).

What vLLM 0.32 does not offer on a CPU: weights handed over in this process, experts packed again after
every load, rotary positions for DeepSeek's attention, and the routers' choices. All hook private names, so the release
is pinned and tests watch them. And, on any device, CUDA handles that need no pickling, and an end together with the
trainer.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from threading import Thread
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine, IPCWeightTransferUpdateInfo
from vllm.model_executor.layers.fused_moe.layer import MoERunner
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform
from vllm.v1.sample import sampler

from minirl.engine.cuda_handles import HANDLES, arguments_of

BACKEND = "minirl_in_process"
OWNER = "MINIRL_VLLM_OWNER"  # environment variable: the process that a vLLM in processes of its own belongs to


@dataclass
class NothingToInit(WeightTransferInitInfo):
    """The trainer and the engine share a process: there is no connection to make."""


@dataclass
class Parameters(WeightTransferUpdateInfo):
    """named: (Hugging Face name, full tensor), one at a time; consumed once."""

    named: Iterable[tuple[str, Tensor]]


class InProcessTransfer(WeightTransferEngine[NothingToInit, Parameters]):
    """vLLM's weight-transfer lifecycle with the trainer's tensors passed by reference and copied layer by layer."""

    init_info_cls, update_info_cls = NothingToInit, Parameters

    def init_transfer_engine(self, init_info: NothingToInit) -> None:
        """Nothing to connect."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update))

    def receive_weights(self, update_info: Parameters) -> None:
        self.model.load_weights(self.without_sinks(update_info.named))

    def without_sinks(self, named: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
        """gpt-oss's loader writes its attention sinks past the session, where they are lost: they go to the loader of
        their own parameter instead."""
        held = dict(self.model.named_parameters())
        for name, values in named:
            if name.endswith(".self_attn.sinks"):
                sinks: Any = held[name.replace(".self_attn.", ".attn.")]
                sinks.weight_loader(sinks, values)
            else:
                yield name, values

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing to disconnect."""


class HandleTransfer(IPCWeightTransferEngine):
    """vLLM's transfer over CUDA IPC, with handles that nothing has to be unpickled for."""

    def parse_update_info(self, update_dict: dict[str, Any]) -> IPCWeightTransferUpdateInfo:
        handles = {gpu: arguments_of(handle) for gpu, handle in update_dict["ipc_handles"].items()}
        return super().parse_update_info(update_dict | {"ipc_handles": handles})


class WorkerExtension:
    """Methods that vLLM mixes into its worker; `collective_rpc` calls them by name."""

    model_runner: Any

    def install_tap(self) -> tuple[int, ...]:
        """Records from now on which experts each token meets. Returns the absolute ids of the layers that route."""
        runners = [module for module in self.model_runner.get_model().modules() if isinstance(module, MoERunner)]
        self.tap = Tap(self.model_runner, sorted(runners, key=lambda module: module.layer_id))
        return tuple(module.layer_id for module in self.tap.layers)

    def collected_routes(self) -> dict[str, list[tuple[int, np.ndarray[Any, Any]]]]:
        """Of each request since the last call: pieces (first position, experts [n, L, k]), in the order computed."""
        routes, self.tap.routes = self.tap.routes, {}
        return routes

    def erase_keys_and_values(self) -> None:
        """Zeros in the whole KV cache. A NaN left in a freed block spoils whoever gets the block next: attention
        multiplies what is behind a sequence's end by 0, and 0 x NaN is NaN."""
        for stored in self.model_runner.kv_caches:
            stored.zero_()


class Tap:
    """Between every router and its experts. A forward pass holds tokens of many requests one after another; the
    runner's own tables say which."""

    def __init__(self, runner: Any, layers: list[Any]) -> None:
        self.runner, self.layers = runner, layers
        self.chosen: list[Tensor | None] = [None] * len(layers)
        self.routes: dict[str, list[tuple[int, np.ndarray[Any, Any]]]] = {}
        for column, layer in enumerate(layers):
            layer.router.set_capture_fn(partial(self.capture, column))
        self.forward, runner._model_forward = runner._model_forward, self.recorded_forward

    def capture(self, column: int, experts: Tensor) -> None:
        self.chosen[column] = experts.to(torch.int32)

    def recorded_forward(self, *args: Any, **kwargs: Any) -> Any:
        self.chosen = [None] * len(self.layers)
        output = self.forward(*args, **kwargs)
        columns = [experts for experts in self.chosen if experts is not None]
        if len(columns) == len(self.layers):
            self.file(torch.stack(columns, 1).cpu().numpy(), kwargs["positions"])
        return output

    def file(self, experts: np.ndarray[Any, Any], positions: Tensor) -> None:
        """experts [tokens, L, k] of this pass, to the requests they belong to."""
        batch = self.runner.input_batch
        bounds = self.runner.query_start_loc.np[: batch.num_reqs + 1]
        for request, begin, end in zip(batch.req_ids, bounds[:-1], bounds[1:], strict=True):
            if end > begin:
                piece = (int(positions[begin]), experts[begin:end].copy())
                self.routes.setdefault(request, []).append(piece)


def pack_experts_after_every_load() -> None:
    """vLLM packs expert weights for its CPU kernel after the first load only, and reads later ones, which lie in
    plain order, as if they were packed: a mixture-of-experts model is silently wrong after its first update."""
    first_only = UnquantizedFusedMoEMethod._setup_kernel

    @wraps(first_only)
    def setup_kernel(self: Any, layer: Any, w13: Tensor, w2: Tensor) -> None:
        again = self.moe_kernel is not None
        first_only(self, layer, w13, w2)
        if again:
            self.moe_kernel.fused_experts.process_weights_after_loading(layer)

    UnquantizedFusedMoEMethod._setup_kernel = setup_kernel


def rotate_in_plain_torch() -> None:
    """vLLM's CPU kernel for rotary positions reads queries of three axes [tokens, heads, size] as if they had two, and
    DeepSeek's attention passes such: its answers are off by nats. The same function in torch is right."""
    kernel = RotaryEmbedding.forward_cpu

    @wraps(kernel)
    def forward_cpu(self: Any, positions: Tensor, query: Tensor, key: Tensor | None = None) -> Any:
        return (kernel if query.ndim == 2 else type(self).forward_native)(self, positions, query, key)

    RotaryEmbedding.forward_cpu = forward_cpu


def ranks(logprobs: Tensor, sampled: Tensor) -> Tensor:
    """How many tokens are at least as likely as the sampled one: [n, V], [n, 1] -> [n]. vLLM compiles this one line
    with a C++ compiler on first use (20 seconds, and a compiler must be there); its result is not used here."""
    return (logprobs >= sampled).sum(-1)


def end_with(owner: int) -> None:
    """Waits for a process to end, however it ends, and ends vLLM then: its processes outlive a killed trainer, and
    would hold their GPUs against the run that goes on. The worker's parent is vLLM's scheduler."""
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(owner)], [], [])
    with suppress(ProcessLookupError):
        os.kill(os.getppid(), signal.SIGKILL)
    os._exit(1)


if OWNER in os.environ and int(os.environ[OWNER]) != os.getpid():
    Thread(target=end_with, args=(int(os.environ[OWNER]),), daemon=True).start()
WeightTransferEngineFactory.register_engine(BACKEND, InProcessTransfer)
WeightTransferEngineFactory.register_engine(HANDLES, HandleTransfer)
if current_platform.is_cpu():
    pack_experts_after_every_load()
    rotate_in_plain_torch()
    sampler.batched_count_greater_than = ranks
