"""Bytes on one device, part by part, and the phase of a step in which most of them are there at once."""

from __future__ import annotations

from dataclasses import dataclass, fields

from minirl.accounting.architecture import Architecture
from minirl.accounting.work import Work
from minirl.config import Config, Numerics
from minirl.validate import own_gpus

MASTER_BYTES = 4  # weights, gradients and both moments of Adam are fp32 (minirl.policy.fsdp)
COMPUTE_BYTES = {"float32": 4, "bfloat16": 2}
# what vLLM holds per parameter: fp8_weights are rounded ones in fp32; so are all of the embedded engine's
SERVED_BYTES = dict.fromkeys(Numerics, 4) | {Numerics.bf16: 2, Numerics.fp8: 1}
LIVE_LOGITS = 3  # fp32 copies of a chunk of logits: scaled, their softmax, their gradient
GATHERED_LAYERS = 2  # FSDP2 holds the layer it computes and fetches the next
MIB = 1 << 20


@dataclass(frozen=True)
class Memory:
    """Bytes on one device. parameters, gradients, optimizer: this rank's shard, fp32 · gathered: layers as FSDP
    computes them, whole · activations: of one micro-batch, with its logits · engine: its own weights · cache: its
    keys and values, on the device of a rank or on one of its own (engine_apart) · evaluator: the weights of an
    evaluator of its own. Whether engine and trainer give their memory back while the other works.
    """

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    engine: int
    cache: int
    evaluator: int
    engine_apart: bool
    engine_rests: bool
    trainer_rests: bool

    @property
    def states(self) -> int:
        """Weights, gradients and moments: what cannot be cut by smaller micro-batches."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def phases(self) -> dict[str, int]:
        """The two in which memory is highest. An engine that rests gives its memory back to the update; a trainer that
        rests has weights on the device only while the engine, its cache empty, takes them over. Where the engine has
        devices of its own, its and the trainer's, whichever hold more."""
        engine, cache = (0, 0) if self.engine_apart else (self.engine, self.cache)
        resident = self.evaluator + (0 if self.engine_rests else engine + cache)
        trainer = max(self.parameters - cache, 0) if self.trainer_rests else self.parameters + self.optimizer
        sampling = max(trainer + self.evaluator + engine + cache, self.engine + self.cache)
        return {"rollout": sampling, "update": self.states + self.gathered + self.activations + resident}

    @property
    def peak(self) -> int:
        return max(self.phases.values())


def memory(config: Config, shape: Architecture, work: Work, *, num_ranks: int) -> Memory:
    """Of one of `num_ranks` devices; those of one replica shard the states among themselves."""
    num_shards = num_ranks // config.train.num_replicas
    compute = COMPUTE_BYTES[config.train.compute_dtype]
    shard = -(-shape.parameters // num_shards)
    whole = GATHERED_LAYERS * shape.largest_layer + shape.vocabulary
    served = config.engine.name == "vllm"
    return Memory(
        parameters=MASTER_BYTES * shard,
        gradients=MASTER_BYTES * shard,
        optimizer=2 * MASTER_BYTES * shard,
        gathered=compute * (whole + shape.largest_layer),  # the last: the gradient of the layer in work
        activations=compute * _saved(config, shape, work) + _logits(config, shape, work),
        engine=(SERVED_BYTES[config.engine.numerics] if served else MASTER_BYTES)
        * shape.parameters
        // (config.engine.tensor_parallel or 1),
        cache=(config.engine.cache_mib or 0) * MIB if served else embedded_cache(config, shape, work, num_ranks),
        evaluator=0 if config.eval.numerics is None else MASTER_BYTES * shape.parameters,
        engine_apart=own_gpus(config.engine) > 0,
        engine_rests=served and bool(config.engine.sleep),
        trainer_rests=config.train.offload,
    )


def _saved(config: Config, shape: Architecture, work: Work) -> int:
    """Numbers that backward keeps: of each layer its input where it is computed again, of one layer everything."""
    tokens = min(config.train.max_tokens_per_micro_batch, work.tokens_per_mini_batch)
    if config.train.activation_checkpointing:
        return tokens * (shape.layers * shape.hidden + shape.saved_numbers // shape.layers)
    return tokens * shape.saved_numbers


def _logits(config: Config, shape: Architecture, work: Work) -> int:
    chunk = min(config.train.likelihood_chunk_tokens, config.train.max_tokens_per_micro_batch)
    return LIVE_LOGITS * MASTER_BYTES * min(chunk, work.tokens_per_mini_batch) * (shape.vocab_size or 0)


def embedded_cache(config: Config, shape: Architecture, work: Work, num_ranks: int) -> int:
    """Keys and values of one wave of the embedded engine in fp32, at its longest: its capacity doubles as it fills."""
    rows = min(config.engine.max_sequences, -(-work.responses // num_ranks))
    return 2 * MASTER_BYTES * rows * work.longest * shape.cached_numbers


def shown_parts(part: Memory) -> dict[str, int]:
    """The parts by name, in the order in which they are told."""
    return {spec.name: getattr(part, spec.name) for spec in fields(part) if spec.type == "int"}
