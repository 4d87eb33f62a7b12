"""The detector's rates, measured: on synthetic curves whose truth is known and on recorded toy runs."""

import re
from pathlib import Path

import pytest
from detector_rates import (
    MARGIN,
    TRACES,
    called_collapsed,
    dip,
    fall,
    of_kind,
    plateau,
    rise,
    simulated,
    stop_rate,
    stops,
    verdict_rate,
    warnings,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "collapse.md"


@pytest.mark.parametrize("curve", [plateau, rise, dip])
def test_false_alarms_on_curves_that_do_not_fall(curve) -> None:
    assert verdict_rate(simulated(curve, 500, 11), MARGIN) < 0.01
    assert stop_rate(simulated(curve, 100, 12), MARGIN) < 0.03


@pytest.mark.parametrize(("size", "missed"), [(6, 0.02), (8, 0.01), (20, 0.0)])
def test_misses_of_falls_of_a_known_size(size: float, missed: float) -> None:
    """In standard errors of one evaluation."""
    assert 1 - verdict_rate(simulated(fall(size), 300, 13), MARGIN) <= missed


def test_a_fall_that_lasts_stops_a_run() -> None:
    assert stop_rate(simulated(fall(12), 100, 14), MARGIN) > 0.97


def test_the_margin_trades_false_alarms_for_misses() -> None:
    strict, loose = (verdict_rate(simulated(plateau, 500, 15), margin) for margin in (4.0, 2.0))
    assert strict < 0.01 < 0.05 < loose
    assert verdict_rate(simulated(fall(4), 500, 16), 6.0) < 0.2 < verdict_rate(simulated(fall(4), 500, 16), 3.0)


def test_recorded_collapses_are_seen() -> None:
    """They keep less than half of their best accuracy; the recorded runs are those that the thresholds were chosen
    on."""
    collapsed = of_kind("collapsed")
    assert len(collapsed) >= 10
    assert sum(map(called_collapsed, collapsed)) >= len(collapsed) - 1
    assert sum(map(stops, collapsed)) >= len(collapsed) - 2


def test_no_recorded_healthy_run_is_called_collapsed_or_stopped() -> None:
    healthy = of_kind("healthy")
    assert len(healthy) >= 40
    assert sum(map(called_collapsed, healthy)) == 0 and sum(map(stops, healthy)) == 0


def test_warnings_trip_in_healthy_runs_too() -> None:
    """Which is why none of them stops a run."""
    rates = {one.metric: one for one in warnings()}
    assert rates["entropy/mean"].false > 10
    assert rates["mismatch/kl_k1"].before > rates["mismatch/kl_k1"].false * rates["mismatch/kl_k1"].collapsed / 45
    assert rates["length/repetition"].false == rates["length/truncated"].false == 0


def test_the_page_has_the_numbers_of_the_recorded_runs() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for kind in ("collapsed", "between", "healthy"):
        runs = of_kind(kind)
        called, ended = sum(map(called_collapsed, runs)), sum(map(stops, runs))
        row = re.search(rf"\| {kind} \| (\d+) of (\d+) \| (\d+) of (\d+) \|", text)
        assert row is not None and list(map(int, row.groups())) == [called, len(runs), ended, len(runs)], kind
    for one in warnings():
        assert f"| `{one.metric}` | {one.before} of {one.collapsed} |" in text, one.metric
        assert f"| {one.false} of {one.healthy} |" in text


def test_the_traces_are_small() -> None:
    assert TRACES.stat().st_size < 200_000
