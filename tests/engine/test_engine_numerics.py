"""The formats against independent definitions."""

import math

import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

from minirl.config import Numerics
from minirl.engine.numerics import ROUNDINGS, ROUTER_NOISE, bfloat16, e4m3, exact, int4, nearest_e4m3, noisy


def every_e4m3() -> Tensor:
    """All finite float8 e4m3fn numbers, ascending."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    return codes[codes.isfinite()].unique()


def vectors(*shape: int) -> Tensor:
    """Heavy-tailed vectors of very different sizes: most entries are far below the largest of their vector."""
    generator = torch.Generator().manual_seed(0)
    size = 10.0 ** torch.linspace(-6, 4, shape[0])
    return torch.randn(shape, generator=generator) ** 5 * size.view(-1, *[1] * (len(shape) - 1))


def test_nearest_e4m3_is_the_cast() -> None:
    numbers = every_e4m3()
    assert len(numbers) == 253  # 2 * 127 codes, one zero
    middles = (numbers[1:] + numbers[:-1]) / 2
    around = [torch.nextafter(middles, torch.full_like(middles, side)) for side in (-math.inf, math.inf)]
    generator = torch.Generator().manual_seed(0)
    spread = (
        (torch.rand(100_000, generator=generator) * 2 - 1)
        * 448
        * 2.0 ** -torch.randint(0, 25, (100_000,), generator=generator)
    )
    for values in (numbers, middles, *around, spread):
        assert nearest_e4m3(values).equal(values.to(torch.float8_e4m3fn).float())
    assert nearest_e4m3(numbers).equal(numbers)


def test_e4m3_scales_each_vector_to_its_largest_entry() -> None:
    values = vectors(11, 7, 64)
    scale = values.abs().amax(-1, keepdim=True) / 448
    assert e4m3(values).equal((values / scale).to(torch.float8_e4m3fn).float() * scale)
    error, largest = (e4m3(values) - values).abs(), values.abs().amax(-1, keepdim=True)
    normal = values.abs() >= largest * 2.0**-6 / 448
    assert bool((error <= values.abs() * 2.0**-4 * 1.0001)[normal].all())  # half of the last of 4 significant bits
    assert bool((error <= largest * 2.0**-10 / 448 * 1.0001)[~normal].all()) and bool((~normal).any())


def test_int4_has_fifteen_levels() -> None:
    values = vectors(11, 7, 64)
    rounded, largest = int4(values), values.abs().amax(-1, keepdim=True)
    levels = (rounded / (largest / 7)).round()
    torch.testing.assert_close(rounded, levels * largest / 7)
    assert levels.unique().tolist() == list(range(-7, 8))
    assert bool(((rounded - values).abs() <= largest / 14 * 1.0001).all())


def test_bfloat16_keeps_eight_bits() -> None:
    values = vectors(11, 7, 64)
    rounded = bfloat16(values)
    assert bool((rounded.view(torch.int32) & 0xFFFF == 0).all())
    assert bool(((rounded - values).abs() <= values.abs() * 2.0**-8).all())
    assert not rounded.equal(values)


@pytest.mark.parametrize("rounding", [e4m3, int4, bfloat16])
def test_vectors_are_rounded_for_themselves(rounding: object) -> None:
    values = vectors(11, 64)
    for row, rounded in zip(values, rounding(values), strict=True):
        assert rounding(row).equal(rounded)
    # negation, powers of two, and what is rounded already change nothing
    assert rounding(-values).equal(-rounding(values))
    assert rounding(values * 4).equal(rounding(values) * 4)
    torch.testing.assert_close(rounding(rounding(values)), rounding(values), rtol=1e-6, atol=0)


@pytest.mark.parametrize("rounding", [e4m3, int4, bfloat16])
def test_zeros_stay_zero_and_a_nan_stays_in_its_vector(rounding: object) -> None:
    values = torch.tensor([[0.0, 0.0, 0.0], [1.0, torch.nan, 2.0], [1.0, -3.0, 2.0], [1e-42, 0.0, 0.0]])
    rounded = rounding(values)
    assert rounded[0].equal(torch.zeros(3))
    assert bool(rounded[1].isnan().any())
    assert rounded[2].equal(rounding(values[2])) and bool(rounded[2].isfinite().all())
    assert bool(rounded[3].isfinite().all())


def test_each_name_rounds_what_it_says() -> None:
    table = {name: (row.weights, row.activations, row.keys_values, row.routed) for name, row in ROUNDINGS.items()}
    assert table == {
        Numerics.fp32: (exact, exact, exact, exact),
        Numerics.bf16: (bfloat16, bfloat16, bfloat16, exact),
        Numerics.fp8: (e4m3, e4m3, exact, exact),
        Numerics.fp8_weights: (e4m3, exact, exact, exact),
        Numerics.int4: (int4, int4, int4, exact),
        Numerics.router_noise: (exact, exact, exact, noisy),
    }


def noise_of(values: torch.Tensor) -> torch.Tensor:
    """The e of x + sigma rms(x) e, in float64 [tokens, width]."""
    size = values.double().square().mean(-1, keepdim=True).sqrt()
    return (noisy(values).double() - values.double()) / (ROUTER_NOISE * size)


def test_noise_is_normal_and_of_the_inputs_size() -> None:
    values = torch.randn(5000, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-2, 2, 5000)[:, None]
    noise = noise_of(values)
    statistic, p = kstest(noise.flatten()[::7].numpy(), "norm")
    assert p > 1e-3, statistic
    assert noise.mean().abs() < 5 / math.sqrt(noise.numel())
    assert abs(noise.var() - 1) < 5 * math.sqrt(2 / noise.numel())


def test_noise_of_neighbours_is_unrelated() -> None:
    """Of the values of a token, of one place in two tokens, of a token and itself with another last bit, of noise and
    token: correlations of n pairs are of size 1 / sqrt(n)."""
    values = torch.randn(5000, 64, generator=torch.Generator().manual_seed(1))
    close = values.clone()
    close[:, 0] = torch.nextafter(close[:, 0], torch.tensor(math.inf))
    noise = noise_of(values)
    pairs = [(noise[:, 1:], noise[:, :-1]), (noise[1:], noise[:-1]), (noise, noise_of(close)), (noise, values.double())]
    for one, other in pairs:
        assert (one * other).mean().abs() < 5 / math.sqrt(one.numel())


def test_noise_is_a_function_of_the_token_alone() -> None:
    values = torch.randn(6, 5, 32, generator=torch.Generator().manual_seed(2))
    assert noisy(values).equal(noisy(values))
    assert noisy(values)[3, 2].equal(noisy(values[3, 2][None])[0])
    assert noisy(torch.zeros(2, 4)).equal(torch.zeros(2, 4))
    assert bool(noisy(torch.tensor([[1.0, math.nan]])).isnan().all())
