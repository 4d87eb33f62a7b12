"""Seconds of one update by phase: a model of arithmetic and of memory traffic, and its calibration.

    sampling   W s / B + R (p + l)^2 / 2 * c / B          s decoding steps read all weights W, each token its context;
                                                          s = max(limit, R l / rows decoded side by side); devices
                                                          that share an engine share W
    pi_old     2 P t / F + attention                      t tokens forward through the P parameters that a token meets
    update     3 times that, 4 with activation checkpointing
    attention  4 q L (p + l) / 2 per token and pass       scores and their sums, q = heads x head size, L full layers

R responses of l expected tokens after p of the prompt, on one of the ranks; c bytes of keys and values per token; B
and F: bandwidth and arithmetic that are reached. A GPU reaches the shares below of its data sheet. With them the
model gives 5.5 GPU-hours for an update of arXiv 2512.01374 on H100 (the paper: 5 to 6, GPU not told); they are a
statement, to be replaced by a measured step.
"""

from __future__ import annotations

from dataclasses import dataclass

from minirl.accounting.architecture import Architecture
from minirl.accounting.machine import Machine
from minirl.accounting.memory import COMPUTE_BYTES, MIB, SERVED_BYTES
from minirl.accounting.work import Work
from minirl.config import Config
from minirl.validate import own_gpus

ARITHMETIC_SHARE, BANDWIDTH_SHARE = 0.15, 0.6  # of a GPU's data sheet; a CPU's figures are measured ones
FORWARD, BACKWARD = 2, 4  # operations per parameter and token
CACHE_BYTES = {"torch": 4, "vllm": 2}


@dataclass(frozen=True)
class Seconds:
    """Of one update, on all ranks at once."""

    rollout: float
    old: float
    update: float
    eval: float

    @property
    def total(self) -> float:
        return self.rollout + self.old + self.update + self.eval

    def scaled(self, factor: float) -> Seconds:
        return Seconds(self.rollout * factor, self.old * factor, self.update * factor, self.eval * factor)


def seconds(config: Config, shape: Architecture, work: Work, machine: Machine, evaluated: int) -> Seconds:
    """By the model alone. evaluated: problems of one evaluation."""
    per_update = work.responses / work.num_mini_batches
    passes = _pass(shape, work.prompt + work.expected) * per_update * (work.prompt + work.expected)
    arithmetic = machine.num_ranks * machine.device.arithmetic * (ARITHMETIC_SHARE if machine.on_gpu else 1.0)
    again = FORWARD if config.train.activation_checkpointing else 0
    return Seconds(
        rollout=_sampling(config, shape, work, machine, work.responses) / work.num_mini_batches,
        old=FORWARD * passes / arithmetic,
        update=(FORWARD + BACKWARD + again) * passes / arithmetic,
        eval=_sampling(config, shape, work, machine, evaluated * config.eval.num_samples) / config.eval.every,
    )


def _pass(shape: Architecture, length: float) -> float:
    """Multiply-adds per token of a forward pass over sequences of this length: parameters, and half its context."""
    return shape.met + shape.full_layers * shape.head_dims * length  # 2 products of 2 q operations on length / 2


def _sampling(config: Config, shape: Architecture, work: Work, machine: Machine, responses: int) -> float:
    """Decoding of so many responses by all ranks, or by the GPUs that an engine has to itself; the prompts' own pass is
    left out."""
    if not responses:
        return 0.0
    share = BANDWIDTH_SHARE if machine.on_gpu else 1.0
    bandwidth, rows = machine.device.bandwidth * share, responses / (own_gpus(config.engine) or machine.num_ranks)
    together = config.engine.tensor_parallel or 1  # devices that share an engine's weights, cache and responses
    queue = rows * together * work.expected / _side_by_side(config, shape, work, together)
    steps = max(work.longest - work.prompt, queue)
    served = SERVED_BYTES[config.engine.numerics] if config.engine.name == "vllm" else COMPUTE_BYTES["float32"]
    weights = shape.parameters * served / together
    context = work.prompt + work.expected
    cached = rows * context**2 / 2 * shape.cached_numbers * CACHE_BYTES[config.engine.name]
    arithmetic = machine.device.arithmetic * (ARITHMETIC_SHARE if machine.on_gpu else 1.0)
    computed = FORWARD * rows * context * _pass(shape, context) / arithmetic
    return max((weights * steps + cached) / bandwidth, computed)


def _side_by_side(config: Config, shape: Architecture, work: Work, together: int) -> float:
    """Responses that an engine on so many devices decodes at once: as many as their caches hold, half grown in the
    mean."""
    if not config.engine.cache_mib:
        return config.engine.max_sequences
    one = (work.prompt + work.expected / 2) * shape.cached_numbers * CACHE_BYTES[config.engine.name]
    return min(config.engine.max_sequences, max(together * config.engine.cache_mib * MIB / max(one, 1), 1.0))
