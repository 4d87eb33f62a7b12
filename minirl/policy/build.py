"""The trainer that a configuration describes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from minirl.config import Config, ModelConfig, TrainConfig
from minirl.models.load import outline
from minirl.models.shards import fill
from minirl.policy.fsdp import FsdpPolicy
from minirl.world import World


@dataclass(frozen=True)
class Trainee:
    """The policy, and how to make another instance of its model for an engine: an outline, whose weights the policy
    gives."""

    policy: FsdpPolicy
    model: Callable[[], PreTrainedModel]


def build(config: Config, *, vocab_size: int, checkpoint: Path | None, world: World) -> Trainee:
    """checkpoint: the Hugging Face folder whose weights it begins with, None for those of `config.model`."""
    policy = sharded(
        config.model,
        vocab_size=vocab_size,
        checkpoint=checkpoint,
        train=config.train,
        temperature=config.sampling.temperature,
        num_mini_batches=config.num_mini_batches,
        world=world,
    )
    return Trainee(policy, lambda: outline(config.model, vocab_size=vocab_size, checkpoint=checkpoint)[0])


def sharded(
    model: ModelConfig,
    *,
    vocab_size: int,
    checkpoint: Path | None,
    train: TrainConfig,
    temperature: float,
    num_mini_batches: int,
    world: World,
) -> FsdpPolicy:
    """A policy of which every rank has read its own shards and nothing else."""
    drawn, source = outline(model, vocab_size=vocab_size, checkpoint=checkpoint)
    policy = FsdpPolicy(drawn, train=train, temperature=temperature, num_mini_batches=num_mini_batches, world=world)
    if source is not None:
        fill(policy.model, source)
    return policy
