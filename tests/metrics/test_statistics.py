"""Every statistic against its closed form, and any cut of the values against the whole."""

from __future__ import annotations

import itertools
import math
import pickle
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minirl.metrics.statistics import (
    EDGES,
    EffectiveSampleSize,
    Histogram,
    Max,
    Mean,
    Min,
    Moments,
    Quotient,
    Sum,
    histograms,
)
from minirl.types import figures, merge

QUANTILES = (0.25, 0.5, 0.95)
MAKERS = {
    "mean": Mean.of,
    "sum": Sum.of,
    "max": Max.of,
    "min": Min.of,
    "std": Moments.of,
    "ess": EffectiveSampleSize.of,
    "histogram": lambda values: Histogram.of(values, QUANTILES),
}
WEIGHTS = st.floats(1e-6, 1e3, allow_nan=False)


@given(st.lists(WEIGHTS, min_size=1, max_size=60), st.lists(st.integers(0, 60), max_size=8))
@settings(deadline=None, max_examples=60)
def test_any_cut_gives_the_figures_of_the_whole(values: list[float], cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]  # equal bounds: an empty part
    parts = [torch.tensor(values[i:j], dtype=torch.float64) for i, j in itertools.pairwise(bounds)]
    for name, make in MAKERS.items():
        whole = make(torch.tensor(values, dtype=torch.float64)).values(name)
        for order in (parts, parts[::-1]):
            merged = reduce(lambda left, right: left.merge(right), [make(part) for part in order]).values(name)
            assert merged == pytest.approx(whole, rel=1e-11, abs=1e-13), name


def test_closed_forms() -> None:
    values = torch.tensor([3.0, 1.0, 2.0, 6.0])
    assert Mean.of(values).values("x") == {"x": 3.0}
    assert Mean.of(values > 1.5).values("x") == {"x": 0.75}
    assert Sum.of(values).values("x") == {"x": 12.0}
    assert (Max.of(values).values("x"), Min.of(values).values("x")) == ({"x": 6.0}, {"x": 1.0})
    assert Moments.of(values).values("x")["x"] == pytest.approx(math.sqrt(3.5))
    assert EffectiveSampleSize.of(values).values("x")["x"] == pytest.approx(144 / (4 * 50))
    assert Quotient(1.0, 4.0).merge(Quotient(2.0, 2.0)).values("x") == {"x": 0.5}  # not (1/4 + 1) / 2


def test_effective_sample_size_at_its_bounds() -> None:
    assert EffectiveSampleSize.of(torch.full((7,), 0.3)).values("x")["x"] == pytest.approx(1.0)
    assert EffectiveSampleSize.of(torch.tensor([0.0, 0.0, 5.0, 0.0])).values("x")["x"] == pytest.approx(0.25)


def test_the_deviation_survives_a_large_offset() -> None:
    values = torch.tensor([1e9, 1e9 + 1, 1e9 + 2], dtype=torch.float64)
    merged = Moments.of(values[:1]).merge(Moments.of(values[1:]))
    assert merged.values("x")["x"] == pytest.approx(math.sqrt(2 / 3), rel=1e-9)


def test_sums_of_float32_are_taken_in_float64() -> None:
    values = torch.cat([torch.tensor([2.0**24]), torch.ones(1000)])
    assert Mean.of(values).total == 2.0**24 + 1000


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "sum"])
def test_nothing_has_no_figures_and_changes_nothing(name: str) -> None:
    nothing, some = MAKERS[name](torch.zeros(0)), MAKERS[name](torch.tensor([2.0, 3.0]))
    assert nothing.values("x") == {}
    assert nothing.merge(some).values("x") == some.merge(nothing).values("x") == some.values("x")


@pytest.mark.parametrize("name", MAKERS)
def test_a_statistic_survives_the_way_to_another_rank(name: str) -> None:
    statistic = MAKERS[name](torch.tensor([0.5, 2.0, 0.0]))
    assert pickle.loads(pickle.dumps(statistic)) == statistic


@given(st.lists(st.floats(1e-7, 9e3), min_size=1, max_size=80), st.sampled_from([0.01, 0.25, 0.5, 0.95, 0.99, 1.0]))
@settings(deadline=None, max_examples=100)
def test_quantiles_lie_in_the_bin_of_the_true_one(values: list[float], share: float) -> None:
    found = Histogram.of(torch.tensor(values, dtype=torch.float64), ()).quantile(share)
    # the order statistics on both sides of the rank, because 0.95 * 20 may round to either
    rank = share * len(values)
    low, high = (sorted(values)[min(max(math.ceil(rank + off) - 1, 0), len(values) - 1)] for off in (-1e-9, 1e-9))
    assert low / 1.0747 <= found <= high * 1.0747


def test_histogram_figures_and_bins() -> None:
    values = torch.tensor([0.0, 0.0, 1e-9, 0.5, 0.5, 20.0, 1e6], dtype=torch.float64)
    histogram = Histogram.of(values, (0.5,))
    found = histogram.values("x")
    assert set(found) == {"x", "x_p50", "x_max"}
    assert found["x"] == pytest.approx(float(values.mean())) and found["x_max"] == 1e6
    edges, counts = histogram.bins()
    assert len(edges) == len(counts) + 1 <= 513 and sum(counts) == 7
    assert counts == np.histogram(values.numpy(), edges)[0].tolist()


def test_bins_have_the_width_that_is_promised() -> None:
    edges = np.array(EDGES)
    assert edges[0] == pytest.approx(1e-8) and edges[-1] == pytest.approx(1e4) and len(edges) + 1 <= 512
    assert edges[1:] / edges[:-1] == pytest.approx(10 ** (1 / 32))


def test_all_zero_reads_zero() -> None:
    assert set(Histogram.of(torch.zeros(5), QUANTILES).values("x").values()) == {0.0}


def test_an_infinite_weight_is_reported_not_raised() -> None:
    weights = torch.tensor([1.0, math.inf])
    assert Mean.of(weights).values("x") == {"x": math.inf}
    assert math.isnan(EffectiveSampleSize.of(weights).values("x")["x"])
    assert EffectiveSampleSize(2, 1e200, 1e300).values("x")["x"] > 0  # 1e200 squared is no float


def test_merge_keeps_keys_of_either_side_and_figures_flattens() -> None:
    left = {"a": Mean(1.0, 2.0), "b": Histogram.of(torch.ones(2), (0.5,))}
    right = {"a": Mean(3.0, 2.0), "c": Sum(1.0)}
    assert figures(merge(left, right)) == {"a": 1.0, "b": 1.0, "b_p50": 1.0, "b_max": 1.0, "c": 1.0}
    assert set(histograms(merge(left, right))) == {"b"}
