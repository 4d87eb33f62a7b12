"""What the routing tape must know of a family's router."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

# (router module, router logits [T, E], chosen experts [T, k] int64) -> mixing weights [T, k]
Gate = Callable[[nn.Module, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class RouterFamily:
    """A family whose router modules return (logits [T, E], weights [T, k], experts [T, k]).

    model_type: as in the folder's config.json · router: class name of the router modules · gate: the weights that the
    family's own score function and normalisation give to *any* k experts, differentiable in the logits.
    """

    model_type: str
    router: str
    gate: Gate
