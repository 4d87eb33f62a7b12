"""Numbers taken from curves, on curves small enough to do by hand."""

import json

import numpy as np
import pytest
from sweep_in_memory import curve, run

from minirl.config import ConfigError
from minirl.report.curves import (
    area,
    band,
    batch_means,
    carried_along,
    carried_forward,
    collect,
    end,
    figure_at,
    peak,
    thinned,
)
from minirl.report.read import abreast


def test_end_is_the_mean_of_the_last_tenth_of_the_plan() -> None:
    dense = curve({version: float(version) for version in range(100)})
    assert end(dense, 100) == pytest.approx(np.mean(range(90, 100)))
    evaluated = curve({0: 0.1, 80: 0.2, 88: 0.4, 96: 0.6})
    assert end(evaluated, 96) == pytest.approx(0.5)  # 86.4 and later: 88 and 96


def test_end_of_a_sparse_metric_is_its_last_value() -> None:
    assert end(curve({0: 1.0, 32: 2.0, 64: 3.0}), 96) == 3.0
    assert end(curve({}), 96) is None


def test_a_stopped_run_carries_its_last_value_forward() -> None:
    stopped = carried_forward(curve({0: 0.5, 8: 0.7, 16: 0.1}), 96)
    assert stopped.versions.tolist() == [0, 8, 16, *range(24, 96, 8), 96]
    assert end(stopped, 96) == pytest.approx(0.1)
    assert area(stopped, 96) == pytest.approx((8 * 0.6 + 8 * 0.4 + 80 * 0.1) / 96)
    # a run that stopped inside the last tenth: two values of its own, then the last one again
    late = carried_forward(curve({version: float(version) for version in range(93)}), 100)
    assert end(late, 100) == pytest.approx(np.mean([90, 91, *[92] * 9]))


def test_a_run_that_stopped_goes_on_beside_the_others() -> None:
    """One evaluation shows no rhythm: alone, its last value would only be known at the planned end."""
    assert carried_forward(curve({0: 0.4}), 96).versions.tolist() == [0, 96]
    along = carried_along(curve({0: 0.4}), np.array([0, 8, 16, 96]))
    assert along.versions.tolist() == [0, 8, 16, 96]
    assert along.values.tolist() == [0.4] * 4
    points = dict.fromkeys(range(0, 101, 10), 0.5)
    short = run(0, {"eval/avg": {0: 0.4}}, state="degenerate")
    curves = abreast([short, run(1, {"eval/avg": points})], "eval/avg")
    assert [one.versions.tolist() for one in curves] == [list(points), list(points)]


def test_a_run_that_reached_its_plan_is_left_alone() -> None:
    whole = curve({0: 0.5, 50: 0.7, 100: 0.1})
    assert carried_forward(whole, 100) is whole


def test_peak_area_and_update() -> None:
    bent = curve({0: 0.0, 10: 1.0, 40: 0.2})
    assert peak(bent, 40) == 1.0
    assert area(bent, 40) == pytest.approx((10 * 0.5 + 30 * 0.6) / 40)
    at_15 = figure_at("update 15")
    assert at_15(bent, 40) == 1.0  # the last evaluation until then
    assert at_15(bent, 12) is None  # beyond the plan
    assert figure_at("update 0")(curve({4: 1.0}), 40) is None


@pytest.mark.parametrize("at", ["ending", "update", "update -3", "update 4.5", ""])
def test_unknown_at(at: str) -> None:
    with pytest.raises(ConfigError, match="use end, peak, area or 'update K'"):
        figure_at(at)


def test_batch_means_undo_the_saw() -> None:
    saw = curve({version: float(version % 4) for version in range(10)})
    means = batch_means(saw, 4)
    assert means.versions.tolist() == [0, 4, 8]
    assert means.values.tolist() == [1.5, 1.5, 0.5]  # the last batch has only two updates
    assert batch_means(saw, 1) is saw


def test_thinning_keeps_every_spike() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    values[[137, 760]] = (50.0, -50.0)
    long = curve(dict(enumerate(values.tolist())))
    thin = thinned(long, 80)
    assert 70 <= len(thin) <= 80
    assert (thin.values.min(), thin.values.max()) == (-50.0, 50.0)
    assert (thin.versions[0], thin.versions[-1]) == (0, 999)  # what a plot says of its ends is true
    for version, value in zip(thin.versions.tolist(), thin.values.tolist(), strict=True):
        assert value == values[version]  # points of the curve, not means
    assert np.diff(thin.versions).min() > 0
    assert thinned(curve({0: 1.0}), 160).values.tolist() == [1.0]


def test_band_is_mean_and_deviation_where_all_have_values() -> None:
    curves = [curve({0: 1.0, 8: 2.0, 16: 9.0}), curve({0: 3.0, 8: 2.0}), curve({0: 2.0, 8: 5.0, 12: 1.0})]
    found = band(curves, logarithmic=False)
    assert found is not None
    assert found.versions.tolist() == [0, 8]
    assert found.mean.tolist() == [2.0, 3.0]
    assert (found.high - found.mean).tolist() == pytest.approx([1.0, np.sqrt(3)])
    two = band(curves[:2], logarithmic=False)
    assert two is not None
    assert two.low.tolist() == two.mean.tolist()  # a spread of two seeds is not drawn


def test_band_on_a_logarithmic_axis_is_geometric_and_skips_what_is_not_positive() -> None:
    curves = [curve({0: 1.0, 8: -1.0}), curve({0: 100.0, 8: 1.0}), curve({0: 10.0, 8: 1.0})]
    found = band(curves, logarithmic=True)
    assert found is not None
    assert found.versions.tolist() == [0]
    assert found.mean.tolist() == pytest.approx([10.0])
    assert found.high.tolist() == pytest.approx([100.0])
    assert band([curve({0: -1.0})], logarithmic=True) is None
    assert band([], logarithmic=False) is None


def test_a_mean_that_is_not_defined_leaves_a_gap() -> None:
    zeros = [curve({0: 1.0, 1: 0.0, 2: 0.0, 3: 4.0, 4: 4.0, 5: 0.0, 6: 2.0}), curve(dict.fromkeys(range(7), 1.0))]
    found = band(zeros, logarithmic=True)
    assert found is not None
    assert [found.versions[part].tolist() for part in found.stretches()] == [[0], [3, 4], [6]]
    whole = band(zeros, logarithmic=False)
    assert whole is not None
    assert len(whole.stretches()) == 1


def test_what_is_absent_null_or_not_finite_is_a_gap() -> None:
    lines = ['{"version": 0, "a": 1, "b": null, "c": true, "d": [1]}', '{"version": 1, "a": NaN, "b": 2.5, "e": "x"}']
    curves = collect([json.loads(line) for line in lines])
    assert {name: (one.versions.tolist(), one.values.tolist()) for name, one in curves.items()} == {
        "a": ([0], [1.0]),
        "b": ([1], [2.5]),
    }
