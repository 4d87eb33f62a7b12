"""The trainer that a configuration describes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from transformers import PreTrainedModel

from minirl.config import Config
from minirl.models.load import build as build_model
from minirl.policy.fsdp import FsdpPolicy
from minirl.world import World


@dataclass(frozen=True)
class Trainee:
    """The policy, and how to make another instance of its model (for an engine)."""

    policy: FsdpPolicy
    model: Callable[[], PreTrainedModel]


def build(config: Config, *, vocab_size: int, checkpoint: Path | None, world: World) -> Trainee:
    """checkpoint: the Hugging Face folder whose weights it begins with, None for those of `config.model`."""
    model = partial(build_model, config.model, vocab_size=vocab_size, checkpoint=checkpoint)
    policy = FsdpPolicy(
        model(),
        train=config.train,
        temperature=config.sampling.temperature,
        num_mini_batches=config.num_mini_batches,
        world=world,
    )
    return Trainee(policy, model)
