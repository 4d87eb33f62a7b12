"""A recipe: the options of one stack that stand for an arm, and in words what they cannot say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minirl.config import Config

OFF = 1e9  # an upper bound that never binds, where a stack has no other word for none
VANISHING = 1e-9  # a lower bound that never binds, where it must be positive
LEFT_OUT = "model, data, reward, hardware and logging"


@dataclass(slots=True)
class Recipe:
    """options: by dotted name, as the stack spells it · unexpressed: what the arm does and these options do not ·
    notes: where they say the same in other words. A recipe is filled in by the functions of its stack."""

    stack: str
    version: str
    options: dict[str, Any] = field(default_factory=dict)
    unexpressed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def set(self, values: Mapping[str, Any], prefix: str = "") -> None:
        """Adds options; one that is set twice with different values is a fault of ours."""
        for name, value in values.items():
            assert self.options.setdefault(f"{prefix}{name}", value) == value, f"{prefix}{name}"

    def cannot(self, *texts: str) -> None:
        self.unexpressed += [text for text in texts if text not in self.unexpressed]

    def note(self, *texts: str) -> None:
        self.notes += [text for text in texts if text not in self.notes]

    @property
    def tree(self) -> dict[str, Any]:
        """The options nested at their dots."""
        root: dict[str, Any] = {}
        for name, value in self.options.items():
            *parents, leaf = name.split(".")
            place = root
            for parent in parents:
                place = place.setdefault(parent, {})
            place[leaf] = value
        return root


def written(stack: str, version: str, config: Config, parts: Sequence[Callable[[Config, Recipe], None]]) -> Recipe:
    """The recipe that the parts fill in, each from the choices of the arm that it knows."""
    made = Recipe(stack, version)
    for part in parts:
        part(config, made)
    return made


def responses_per_update(config: Config) -> int:
    return config.prompts_per_mini_batch * config.group_size


def prompts_per_batch(config: Config) -> int:
    return config.prompts_per_mini_batch * config.num_mini_batches


def num_batches(config: Config) -> int:
    """Rollout batches of the whole run."""
    return -(-config.num_updates // config.num_mini_batches)


def max_norm(config: Config) -> float | None:
    """The threshold of gradient clipping; None: no clipping."""
    optim = config.train.optim
    return optim.max_norm if optim.clip == "global_norm" else None


def has_unbounded_product(config: Config) -> bool:
    product = config.algo.is_weight.product
    return product.low is None and product.high is None


def leave_one_out_note(config: Config) -> str:
    size = config.group_size
    return (
        f"leave_one_out is the group mean times {size}/{size - 1}; Adam does not see the factor, gradient clipping does"
    )
