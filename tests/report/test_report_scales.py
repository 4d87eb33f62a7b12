"""Axes: every value lands inside, ticks are round and inside."""

import numpy as np
import pytest

from minirl.report.plots import apart
from minirl.report.scales import far_below, fitted, tick_label


@pytest.mark.parametrize("logarithmic", [False, True])
@pytest.mark.parametrize("low", [1e-6, 0.01, 0.4, 3.0])
@pytest.mark.parametrize("span", [1.0, 1.05, 3.0, 40.0, 1e5])
def test_values_land_inside_and_ticks_too(low: float, span: float, logarithmic: bool) -> None:
    values = np.geomspace(low, low * span, 7).tolist()
    scale = fitted(values, 200.0, 10.0, logarithmic=logarithmic)
    pixels = [scale(value) for value in values]
    assert all(10.0 <= pixel <= 200.0 for pixel in pixels)
    assert pixels == sorted(pixels, reverse=True)
    ticks = scale.ticks(5)
    assert 2 <= len(ticks) <= 12
    assert all(scale.low <= tick * (1 + 1e-9) and tick <= scale.high * (1 + 1e-9) for tick in ticks)
    assert len({tick_label(tick) for tick in ticks}) == len(ticks)


def test_negative_values_and_a_single_value() -> None:
    assert fitted([-2.0, -1.0], 0.0, 100.0, logarithmic=False).ticks(5) == [-2.0, -1.5, -1.0]
    one = fitted([0.3], 0.0, 100.0, logarithmic=False)
    assert one(0.3) == pytest.approx(50.0)


def test_an_axis_that_nearly_begins_at_zero_begins_there() -> None:
    assert fitted([0.01, 1.0], 0.0, 100.0, logarithmic=False).low == 0.0
    assert fitted([0.5, 1.0], 0.0, 100.0, logarithmic=False).low > 0.4


def test_a_logarithmic_axis_is_cut_far_below_its_top() -> None:
    scale = fitted([1e-20, 1.0], 100.0, 0.0, logarithmic=True)
    assert scale(1e-20) == 100.0
    assert scale.low > 1e-8
    assert not scale.shows(1e-20)
    assert not scale.shows(-1.0)
    assert scale.shows(0.5)


def test_lines_of_another_magnitude_do_not_stretch_the_axis() -> None:
    fp8, bf16, fp32 = [4e-3, 9e-3], [2e-4, 3e-4], [1e-13, 5e-8]
    assert far_below({0: fp8, 1: bf16, 2: fp32}) == {2}
    assert far_below({0: fp8, 1: bf16}) == set()  # bf16 beside fp8 is a comparison, not a control
    assert far_below({0: fp32, 1: fp32}) == set()
    assert far_below({0: fp8, 1: [1e-13, 4e-3]}) == set()  # it reaches up to the others
    assert far_below({0: fp8, 1: []}) == set()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.5, "0.5"),
        (20.0, "20"),
        (0.001, "0.001"),
        (1e-4, "10⁻⁴"),
        (2e-5, "2·10⁻⁵"),
        (-0.05, "-0.05"),
        (1e6, "10⁶"),
        (20000.0, "20000"),
        (0.99992, "0.99992"),  # beside 0.99994, which four digits would call the same
    ],
)
def test_tick_labels(value: float, text: str) -> None:
    assert tick_label(value) == text


def test_labels_are_moved_apart_and_stay_inside() -> None:
    placed = apart([10.0, 11.0, 12.0, 95.0, 99.0], 14.0, 5.0, 100.0)
    assert placed == [10.0, 24.0, 38.0, 86.0, 100.0]
    assert apart([], 14.0, 5.0, 100.0) == []
    assert apart([50.0], 14.0, 5.0, 100.0) == [50.0]
