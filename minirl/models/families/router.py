"""What must be known of a family of MoE models to train it with its routes on tape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

# (router module, router logits [T, E], chosen experts [T, k] int64) -> mixing weights [T, k]
Gate = Callable[[Any, Tensor, Tensor], Tensor]
# router logits [T, E] -> log of the score of every expert [T, E], in fp32
LogScore = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class RouterFamily:
    """A family whose router modules return (logits [T, E], weights [T, k], experts [T, k]).

    model_type: as in the folder's config.json · router: class name of the router modules · gate: the weights that the
    family's own score function and normalisation give to *any* k experts, differentiable in the logits · log_score: the
    log of its score function over all experts, before any choice or renormalisation · attention: the transformers
    attention implementation to use.
    """

    model_type: str
    router: str
    gate: Gate
    log_score: LogScore
    attention: str
