"""The comparison of cold starts: its numbers against others computed here, its words, and the page in a browser."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cold_sweep import STARTS, write_cold_sweep
from headless_chromium import EXECUTABLE, browser
from scipy import stats
from synthetic_sweep import write_sweep

from minirl.report.claims import evaluate
from minirl.report.coldstart_page import coldstart_page
from minirl.report.coldstarts import NEAR, Comparison, compared_starts
from minirl.report.curves import Curve
from minirl.report.page import write_page
from minirl.report.read import Run, Sweep, read_sweep


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return read_sweep(write_cold_sweep(tmp_path_factory.mktemp("sweeps") / "cold"))


@pytest.fixture(scope="module")
def found(sweep: Sweep) -> Comparison:
    comparison = compared_starts(sweep, evaluate(sweep))
    assert comparison is not None
    return comparison


def scores(sweep: Sweep, seed: int) -> np.ndarray:
    """[starts, evaluations], from the files."""
    table = []
    for arm in sweep.distinct_arms:
        (run,) = [run for run in arm.runs if run.seed == seed]
        rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
        table.append([row["eval/avg"] for row in rows if "eval/avg" in row])
    return np.array(table)


def test_spreads_and_their_trend(sweep: Sweep, found: Comparison) -> None:
    versions = np.arange(0, 97, 8)
    slopes = []
    for seed in range(5):
        table = scores(sweep, seed)
        spread = table.max(0) - table.min(0)
        assert found.spreads[seed].values == pytest.approx(spread)
        assert found.first is not None and found.first.by_seed[seed] == pytest.approx(spread[0])
        assert found.peak is not None and found.peak.by_seed[seed] == pytest.approx(np.ptp(table.max(1)))
        ends = table[:, versions >= 86.4].mean(1)
        assert found.end is not None and found.end.by_seed[seed] == pytest.approx(np.ptp(ends))
        slopes.append(96 * stats.linregress(versions, spread).slope)
    trend = found.trend
    assert trend is not None and trend.interval is not None
    assert trend.mean == pytest.approx(np.mean(slopes))
    assert trend.interval == pytest.approx(stats.t.interval(0.95, 4, np.mean(slopes), stats.sem(slopes)))
    assert trend.interval[1] < 0


def test_updates_to_the_best_and_lengths(sweep: Sweep, found: Comparison) -> None:
    versions = np.arange(0, 97, 8)
    for seed in range(5):
        table = scores(sweep, seed)
        best = table[:, versions >= 86.4].mean(1).max()
        for start, line in zip(found.starts, table, strict=True):
            there = versions[line >= best - NEAR]
            assert start.reached[seed] == (there[0] if there.size else None)
    for start in found.starts:
        first, last = start.lengths
        assert first is not None and last is not None
        assert first.mean == last.mean == pytest.approx(STARTS[start.arm][2] + 0.02)
    reached = {0: 8, 1: 16}
    assert replace(found.starts[0], reached=reached).updates_to_best == 12
    assert replace(found.starts[0], reached=reached | {2: None}).updates_to_best is None


def test_convergence_is_the_verdict_on_a_claim(sweep: Sweep, found: Comparison, tmp_path: Path) -> None:
    (verdict,) = found.verdicts
    assert verdict.claim.relation == "converges"
    assert f"“The scores come together”: {verdict.verdict}; the spread" in coldstart_page(sweep, found)
    generous = read_sweep(write_cold_sweep(tmp_path / "generous", margin=0.2))
    agreed = compared_starts(generous, evaluate(generous))
    assert agreed is not None and agreed.verdicts[0].verdict == "reproduced"
    silent = replace(sweep, claims=())
    assert "makes no claim of it" in coldstart_page(silent, replace(found, verdicts=()))


def test_two_seeds_are_points_without_an_interval(sweep: Sweep) -> None:
    arms = {name: replace(arm, runs=arm.runs[:2]) for name, arm in sweep.arms.items()}
    few = compared_starts(replace(sweep, arms=arms), ())
    assert few is not None and few.end is not None and few.end.interval is None
    assert set(few.spreads) == {0, 1}


def test_a_start_that_never_gets_near_and_a_run_without_evaluations(sweep: Sweep) -> None:
    def blind(run: Run) -> Run:
        return replace(run, curves={name: curve for name, curve in run.curves.items() if name != "eval/avg"})

    arms = dict(sweep.arms)
    arms["terse teacher"] = replace(arms["terse teacher"], runs=tuple(map(blind, arms["terse teacher"].runs)))
    assert compared_starts(replace(sweep, arms=arms), ()) is None
    low = Curve(np.array([0, 96]), np.array([0.1, 0.1]))
    runs = tuple(replace(run, curves=dict(run.curves) | {"eval/avg": low}) for run in sweep.arms["terse teacher"].runs)
    arms["terse teacher"] = replace(sweep.arms["terse teacher"], runs=runs)
    hopeless = compared_starts(replace(sweep, arms=arms), ())
    assert hopeless is not None
    assert set(hopeless.starts[2].reached.values()) == {None}


def test_one_cold_start_is_no_comparison(tmp_path: Path) -> None:
    sweep = read_sweep(write_sweep(tmp_path / "one", seeds=range(2)))
    assert compared_starts(sweep, evaluate(sweep)) is None
    page = write_page(sweep, evaluate(sweep))
    assert not page.with_name("coldstarts.html").exists()
    assert 'id="coldstarts"' not in page.read_text("utf-8")


@pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium here")
def test_the_page_in_a_browser(sweep: Sweep, found: Comparison, tmp_path: Path) -> None:
    page = write_page(sweep, evaluate(sweep))
    assert {'href="coldstarts.html"', 'href="#coldstarts"'} <= set(re.findall(r'href="[^"]+"', page.read_text("utf-8")))
    own = page.with_name("coldstarts.html")
    shown = {
        name: float(value)
        for name, value in re.findall(r'data-measure="(\w+)" data-mean="([^"]+)"', own.read_text("utf-8"))
    }
    assert shown == {name: getattr(found, name).mean for name in ("first", "peak", "end", "trend")}
    with browser(tmp_path / "profile") as tab:
        for width in (1280, 420):
            tab.open(own, width=width)
            assert tab.messages == []
            assert tab.requests == [own.resolve().as_uri()] * (1 if width == 1280 else 2)
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        plots = "[...document.querySelectorAll('figure svg')].map(s => s.querySelectorAll('path.mean').length)"
        assert tab.evaluate(plots) == [1, 3, 3]
