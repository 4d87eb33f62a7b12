"""The number formats in which an engine stores weights, activations and the KV cache.

Every format is a rounding: it takes fp32 and returns fp32 values that the format can hold, so one definition serves
every device and the matrix products themselves stay in fp32. A scale always belongs to one vector along the last
axis: an output channel of a weight [..., out, in], a token of an activation [..., in], a token and head of a key or
value [rows, heads, tokens, head_dim].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from minirl.config import Numerics

Rounding = Callable[[Tensor], Tensor]

E4M3_MAX = 448.0  # 1.75 * 2^8, the largest finite e4m3fn number
INT4_MAX = 7.0  # symmetric: -7 .. 7, so that negating a vector negates its rounding


def exact(values: Tensor) -> Tensor:
    """x, unrounded."""
    return values


def bfloat16(values: Tensor) -> Tensor:
    """The nearest number with 8 significant bits, ties to even."""
    return values.to(torch.bfloat16).to(values.dtype)


def e4m3(values: Tensor) -> Tensor:
    """s * e4m3fn(x / s) with s = max|x| / 448 over the last axis."""
    scale = _vector_scale(values, E4M3_MAX)
    return nearest_e4m3(values / scale).mul_(scale)


def int4(values: Tensor) -> Tensor:
    """s * round(x / s) with s = max|x| / 7 over the last axis: at most 15 levels per vector."""
    scale = _vector_scale(values, INT4_MAX)
    return (values / scale).round_().mul_(scale)


def nearest_e4m3(values: Tensor) -> Tensor:
    """The nearest float8 e4m3fn number of each fp32 |x| <= 448, ties to even.

    Numbers in [2^e, 2^(e+1)) are multiples of u = 2^(e-3), those below 2^-6 of u = 2^-9. Adding and subtracting
    1.5 * 2^23 * u leaves fp32 no finer step than u. Eight times faster on a CPU than casting to float8 and back.
    """
    exponent = (values.view(torch.int32) & 0x7F800000).clamp_min_((127 - 6) << 23)
    anchor = exponent.add_((20 << 23) | 0x400000).view(torch.float32)
    return (values + anchor).sub_(anchor)


def _vector_scale(values: Tensor, largest: float) -> Tensor:
    # a vector of zeros gets a positive scale and stays zero; a NaN stays a NaN
    smallest = torch.finfo(values.dtype).tiny
    return values.abs().amax(-1, keepdim=True).div_(largest).clamp_min_(smallest)


@dataclass(frozen=True, slots=True)
class Roundings:
    """What is rounded: weights and inputs of the attention and expert products, and the KV cache."""

    weights: Rounding
    activations: Rounding
    keys_values: Rounding


ROUNDINGS = {
    Numerics.fp32: Roundings(weights=exact, activations=exact, keys_values=exact),
    Numerics.bf16: Roundings(weights=bfloat16, activations=bfloat16, keys_values=bfloat16),
    Numerics.fp8: Roundings(weights=e4m3, activations=e4m3, keys_values=exact),
    Numerics.fp8_weights: Roundings(weights=e4m3, activations=exact, keys_values=exact),
    Numerics.int4: Roundings(weights=int4, activations=int4, keys_values=int4),
}
