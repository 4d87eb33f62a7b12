"""What a decoding batch remembers: keys and values are rounded as they are stored, finished rows are dropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionLayer

from minirl.engine.numerics import Rounding


class KeyValues(CacheLayerMixin):
    """Keys and values of one decoder layer, [rows, heads, capacity, head_dim], of which `length` tokens are filled.

    The capacity doubles when it is used up. Attention gets views, so that a decoding step copies one token per row
    instead of the whole cache.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, rounding: Rounding) -> None:
        super().__init__()
        self.rounding = rounding
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = (_emptied(states, 0) for states in (key_states, value_states))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Stores the rounded keys and values of new tokens and returns those of all tokens."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self.length = self.length, self.length + key_states.shape[2]
        if self.length > self.keys.shape[2]:
            self.keys, self.values = (self._enlarged(stored, start) for stored in (self.keys, self.values))
        self.keys[:, :, start : self.length] = self.rounding(key_states)
        self.values[:, :, start : self.length] = self.rounding(value_states)
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def _enlarged(self, stored: Tensor, length: int) -> Tensor:
        larger = _emptied(stored, max(self.length, 2 * stored.shape[2]))
        larger[:, :, :length] = stored[:, :, :length]
        return larger

    def expand(self, rows: Tensor) -> None:
        """Row i becomes a copy of what row rows[i] was: one prefill serves a whole group."""
        self.keys, self.values = self.keys[rows], self.values[rows]

    def keep(self, order: Tensor) -> None:
        """Row i becomes what row order[i] was, for len(order) rows; rows that stay in place are not copied."""
        places = (order != torch.arange(len(order), device=order.device)).nonzero().squeeze(-1)
        for stored in (self.keys, self.values):
            stored[places, :, : self.length] = stored[order[places], :, : self.length]
        self.keys, self.values = self.keys[: len(order)], self.values[: len(order)]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


def _emptied(like: Tensor, capacity: int) -> Tensor:
    rows, heads, _, head_dim = like.shape
    return like.new_empty(rows, heads, capacity, head_dim)


class LinearStates(LinearAttentionLayer):
    """The states of one linear-attention layer, of fixed size: [rows, ...] each. They are no keys and values, so they
    are not rounded."""

    def expand(self, rows: Tensor) -> None:
        """Row i becomes a copy of what row rows[i] was."""
        for states in (self.conv_states, self.recurrent_states):
            for place, state in states.items():
                states[place] = None if state is None else state[rows]

    keep = expand


LINEAR = "linear_attention"  # transformers' name for such a layer


class DecodingCache(Cache):
    """One KeyValues, or one LinearStates, per decoder layer. layer_types: of each, by transformers' names."""

    def __init__(self, layer_types: Sequence[str], rounding: Rounding) -> None:
        self.stored = [LinearStates() if kind == LINEAR else KeyValues(rounding) for kind in layer_types]
        super().__init__(layers=[*self.stored])

    def expand(self, rows: Tensor) -> None:
        for layer in self.stored:
            layer.expand(rows)

    def keep(self, order: Tensor) -> None:
        for layer in self.stored:
            layer.keep(order)


def survivors(finished: Tensor) -> Tensor:
    """[num unfinished]: which row goes to which place when finished ones ([rows] bool) are dropped.

    The places of finished rows are filled from the end, so that each row is moved at most once in its life.
    """
    size = int((~finished).sum())
    order = torch.arange(size, device=finished.device)
    order[finished[:size]] = (~finished[size:]).nonzero().squeeze(-1) + size
    return order
