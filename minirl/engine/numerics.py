"""The number formats in which an engine stores weights, activations and the KV cache, and noise in its routers.

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
ROUTER_NOISE = 0.5  # root mean square of the noise at a router's input, in that of the input


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


def noisy(values: Tensor) -> Tensor:
    """x + sigma rms(x) e, e ~ N(0, I) for each token [..., in]; sigma = ROUTER_NOISE.

    A rounding is a fixed function that training can learn to live with. This is not: e is hashed from the bits of x,
    so it is the same whenever x is, and another one when x differs in its last bit.
    """
    bits = values.float().contiguous().view(torch.int32).long()
    place = torch.arange(values.shape[-1], device=values.device)
    token = _scrambled(bits ^ _scrambled(place + 1)).sum(-1, keepdim=True)
    # 52 bits: with 53 the half that keeps it from 0 could round it to 1
    uniform = ((_scrambled(token + place) >> 12) & (2**52 - 1)).double().add_(0.5).div_(2**52)
    size = values.float().square().mean(-1, keepdim=True).sqrt_().mul_(ROUTER_NOISE)
    return values + size * torch.special.ndtri(uniform).to(values.dtype)


def _scrambled(words: Tensor) -> Tensor:
    """A bijection of int64 each of whose output bits depends on all input bits: the finaliser of SplitMix64 (Steele,
    Lea & Flood 2014). Products wrap; a right shift of a negative number is made logical."""
    words = words * -7046029254386353131
    words = (words ^ ((words >> 30) & (2**34 - 1))) * -4658895280553007687
    words = (words ^ ((words >> 27) & (2**37 - 1))) * -7723592293110705685
    return words ^ ((words >> 31) & (2**33 - 1))


def _vector_scale(values: Tensor, largest: float) -> Tensor:
    # a vector of zeros gets a positive scale and stays zero; a NaN stays a NaN
    smallest = torch.finfo(values.dtype).tiny
    return values.abs().amax(-1, keepdim=True).div_(largest).clamp_min_(smallest)


@dataclass(frozen=True, slots=True)
class Roundings:
    """What is rounded: weights and inputs of the attention and expert products, the KV cache, and the inputs of the
    routers."""

    weights: Rounding
    activations: Rounding
    keys_values: Rounding
    routed: Rounding


ROUNDINGS = {
    Numerics.fp32: Roundings(weights=exact, activations=exact, keys_values=exact, routed=exact),
    Numerics.bf16: Roundings(weights=bfloat16, activations=bfloat16, keys_values=bfloat16, routed=exact),
    Numerics.fp8: Roundings(weights=e4m3, activations=e4m3, keys_values=exact, routed=exact),
    Numerics.fp8_weights: Roundings(weights=e4m3, activations=exact, keys_values=exact, routed=exact),
    Numerics.int4: Roundings(weights=int4, activations=int4, keys_values=int4, routed=exact),
    Numerics.router_noise: Roundings(weights=exact, activations=exact, keys_values=exact, routed=noisy),
}
