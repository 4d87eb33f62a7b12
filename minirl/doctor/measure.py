"""One rollout batch of the engine, scored by the trainer with the same weights: live, and replaying its routes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from minirl.config import Config, Routing
from minirl.engine.registry import build as build_engine
from minirl.engine.registry import require
from minirl.examine import restored
from minirl.types import OldPolicy, RolloutBatch, Sampling
from minirl.world import World


@dataclass(frozen=True, slots=True)
class Measurement:
    """rollouts: what the engine sampled · live: pi_old with the trainer's own routing · replayed: pi_old with the
    engine's experts, None for a dense model."""

    rollouts: RolloutBatch
    live: OldPolicy
    replayed: OldPolicy | None


def measure(config: Config, checkpoint: Path | None) -> Measurement:
    """On the first training prompts of one rollout batch. checkpoint: a run's folder or checkpoint, or a folder in
    Hugging Face format; None: the model as `model` describes it, before any training."""
    require(config.engine)
    world = World.join(config.run.device)
    try:
        start = restored(config, checkpoint, world)
        engine = build_engine(config, start.model(), pad=start.task.pad, world=world)
        try:
            engine.load_parameters(start.policy.parameters(), start.policy.version)
            prompts = start.task.prompts(0, config.prompts_per_mini_batch * config.num_mini_batches, config.seed)
            rollouts = engine.generate(prompts, sampling(config, start.task.eos), config.group_size)
            live = start.policy.recompute(rollouts, Routing.live)
            replayed = None if rollouts.routes is None else start.policy.recompute(rollouts, Routing.r3)
            return Measurement(rollouts, live, replayed)
        finally:
            engine.close()
    finally:
        world.leave()


def sampling(config: Config, eos: int) -> Sampling:
    """As training samples, from a stream of its own."""
    return Sampling(
        temperature=config.sampling.temperature,
        max_response_tokens=config.sampling.max_response_tokens,
        eos=eos,
        seed=config.seed,
        purpose="doctor",
    )
