"""Recorded routes, read for a particular model: its layers by absolute id, and which rows can be followed."""

from __future__ import annotations

import torch
from torch import Tensor

from minirl.types import Routes


def columns(routes: Routes, layers: tuple[int, ...]) -> Tensor:
    """[T, len(layers), k]: the entries of the given decoder layers, found by absolute id.

    An engine may record every decoder layer, dense ones included; counting MoE layers instead of reading ids would
    give each layer after a dense one its neighbour's experts.
    """
    missing = [layer for layer in layers if layer not in routes.layers]
    if missing:
        raise ValueError(f"the routes hold layers {list(routes.layers)}, the model also routes in {missing}")
    if layers == routes.layers:
        return routes.experts
    return routes.experts[:, [routes.layers.index(layer) for layer in layers]]


def well_formed(experts: Tensor, num_experts: int) -> Tensor:
    """[T, L, k] -> [T] bool: in every layer k different experts that exist. A row of zeros (padding) is not, unless
    k = 1: there only an explicit mask can tell."""
    well = torch.ones(experts.shape[0], dtype=torch.bool, device=experts.device)
    for layer in experts.unbind(1):  # one at a time: int64 is up to eight times the table
        ordered = layer.long().sort(dim=-1).values
        well &= (ordered[:, 0] >= 0) & (ordered[:, -1] < num_experts) & (ordered[:, 1:] != ordered[:, :-1]).all(dim=-1)
    return well
