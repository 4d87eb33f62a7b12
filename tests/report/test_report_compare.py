"""Two runs side by side: the collapsed and the healthy one, the same one twice, and one that was cut."""

import io
import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from sweep_in_memory import run
from synthetic_sweep import ARMS, BASE, Behaviour, config_of, identity_of, rows_of, write_run, write_sweep

from minirl.report.compare import comparison
from minirl.report.partings import parts_at, seed_noise
from minirl.report.read import Run, read_run
from minirl.report.side_by_side import show


def folder_of(tmp_path: Path, name: str, behaviour: Behaviour | None = None, seed: int = 0) -> Path:
    overrides, usual = ARMS[name] if name in ARMS else ([], Behaviour())
    config = config_of(overrides, seed, BASE)
    place = tmp_path / f"{name.replace(' ', '-')}-s{seed}"
    state = "collapsed" if (behaviour or usual).collapses else "finished"
    write_run(place, config, rows_of(config, behaviour or usual, seed, name), name, state)
    return place


def said(paths: list[Path], terminal: bool = False) -> str:
    text = io.StringIO()
    show(comparison([read_run(path) for path in paths]), Console(file=text, force_terminal=terminal, width=160))
    return text.getvalue()


def test_a_collapsed_and_a_healthy_run(tmp_path: Path) -> None:
    paths = [folder_of(tmp_path, "MiniRL"), folder_of(tmp_path, "no clipping")]
    found = comparison([read_run(path) for path in paths])
    assert found.keys == {
        "algo.trust_region.kind": ("ratio", "none"),
        "algo.trust_region.low": ("0.2", "null"),
        "algo.trust_region.high": ("0.27", "null"),
    }
    [partings] = found.partings
    by_metric = {one.metric: one.version for one in partings}
    # the made-up run falls around update 43 to 53, and its staleness and entropy with it
    assert 30 <= by_metric["staleness/kl_k3"] <= 60
    assert 40 <= by_metric["reward/mean"] <= 72
    assert 40 <= by_metric["eval/avg"] <= 72
    assert by_metric["entropy/mean"] >= 40  # it rises, which is a sign as much as a fall
    assert partings[0].version == min(by_metric.values())
    assert [one.version for one in partings] == sorted(by_metric.values())
    text = said(paths)
    assert f"update {partings[0].version}: {partings[0].metric}" in text
    assert re.search(r"^ending +finished +collapsed$", text, re.M)
    healthy, collapsed = found.alarms
    assert healthy == ()
    assert {one.metric for one in collapsed} >= {"entropy/mean", "mismatch/kl_k1"}
    assert next(one for one in collapsed if one.metric == "entropy/mean").direction == "above"


def test_runs_that_only_differ_by_noise_do_not_part(tmp_path: Path) -> None:
    runs = [read_run(folder_of(tmp_path, "MiniRL", seed=seed)) for seed in range(4)]
    partings = [one for found in comparison(runs).partings for one in found]
    assert len(partings) <= 3  # of three pairs with some thirty metrics each


def test_a_run_and_itself(tmp_path: Path) -> None:
    path = folder_of(tmp_path, "R3")
    found = comparison([read_run(path), read_run(path)])
    assert (found.keys, found.unequal, found.partings) == ({}, None, ((),))
    assert "Equal in every number of every version that all have." in said([path, path])


def test_the_first_unequal_number_is_found_bit_for_bit(tmp_path: Path) -> None:
    first = folder_of(tmp_path, "R3")
    config = config_of(ARMS["R3"][0], 0)
    rows = rows_of(config, ARMS["R3"][1], 0, "R3")
    rows[41]["optim/grad_norm"] = float(np.nextafter(rows[41]["optim/grad_norm"], 9))
    rows[10]["time/update"] += 1.0  # a clock is no result
    rows[50]["clip/fraction"] += 1.0
    other = tmp_path / "changed-s0"
    write_run(other, config, rows, "R3", "finished")
    assert comparison([read_run(first), read_run(other)]).unequal == (41, ("optim/grad_norm",))


def test_an_unfinished_run_is_compared_as_far_as_it_got(tmp_path: Path) -> None:
    paths = [folder_of(tmp_path, "MiniRL"), folder_of(tmp_path, "R2")]
    lines = (paths[1] / "metrics.jsonl").read_text().splitlines(keepends=True)
    (paths[1] / "metrics.jsonl").write_text("".join(lines[:20]) + "{")
    text = said(paths)
    assert re.search(r"^updates +96 of 96 +19 of 96$", text, re.M)
    assert "the last line is torn" in text


def test_in_a_terminal_it_is_a_table(tmp_path: Path) -> None:
    paths = [folder_of(tmp_path, "MiniRL"), folder_of(tmp_path, "R2")]
    assert "\x1b[" in said(paths, terminal=True)
    assert "\x1b[" not in said(paths)


@pytest.mark.parametrize("drift", [1.0, -1.0])
def test_a_difference_parts_where_it_leaves_its_early_spread_for_good(drift: float) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 100)
    step = np.where(np.arange(100) >= 60, drift, 0.0)
    place = parts_at(noise + step, level=1.0)
    assert place is not None
    assert 60 <= place <= 62
    back = np.where((np.arange(100) >= 60) & (np.arange(100) < 80), drift, 0.0)
    assert parts_at(noise + back, level=1.0) is None  # it comes back
    assert parts_at(noise, level=1.0) is None
    assert parts_at((noise + step)[:7], level=1.0) is None  # too short to know its own spread
    assert parts_at(0.001 * step, level=1.0) is None  # a thousandth of the level is nothing


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("sweeps") / "seeds")


def runs_of(sweep: Path, arm: str) -> list[Run]:
    return [read_run(path) for path in sorted(sweep.glob(f"{identity_of(arm)}-s*"))]


def test_where_there_are_seeds_noise_is_theirs(sweep: Path) -> None:
    healthy, collapsed = runs_of(sweep, "MiniRL"), runs_of(sweep, "no clipping")
    for left, right in pairwise(healthy):
        [found] = comparison([left, right]).partings
        assert len(found) <= 1
    [found] = comparison([healthy[0], collapsed[0]]).partings
    by_metric = {one.metric: one for one in found}
    assert 40 <= by_metric["eval/avg"].version <= 72
    assert by_metric["eval/avg"].num_seeds == 5
    assert by_metric["clip/fraction"].version <= 1  # apart from the first update on, which no early spread can tell
    text = io.StringIO()
    show(comparison([healthy[0], collapsed[0]]), Console(file=text, width=160))
    assert "what parts for good beyond the noise of 5 seeds" in text.getvalue()


def test_noise_is_that_of_the_calmer_arm() -> None:
    versions = np.arange(40)
    calm = [run(seed, {"m": dict(enumerate(np.full(40, 0.01 * seed)))}) for seed in range(4)]
    wild = [run(seed, {"m": dict(enumerate(np.full(40, 1.0 * seed)))}) for seed in range(4)]
    noise, num_seeds = seed_noise("m", versions, (wild, calm))
    assert noise is not None
    assert num_seeds == 4
    assert noise == pytest.approx(np.sqrt(2) * np.std([0, 0.01, 0.02, 0.03], ddof=1))
    assert seed_noise("m", versions, (calm[:2], wild[:1])) == (None, 0)


def test_code_packages_and_machine_that_differ_are_shown(tmp_path: Path) -> None:
    paths = [folder_of(tmp_path, "MiniRL", seed=seed) for seed in range(3)]
    record = json.loads((paths[2] / "run.json").read_text())
    record |= {"host": "cluster", "git": {"sha": "0" * 40, "dirty": True}}
    record["packages"]["torch"] = "2.14.0"
    (paths[2] / "run.json").write_text(json.dumps(record))
    resumed = json.loads((paths[1] / "run.json").read_text()) | {"codes": ["3c52fe9d", "0123abcd"]}
    (paths[1] / "run.json").write_text(json.dumps(resumed))
    found = comparison([read_run(path) for path in paths])
    assert found.surroundings == {
        "code": ("3c52fe9d", "3c52fe9d then 0123abcd", "00000000+?"),
        "host": ("laptop", "laptop", "cluster"),
        "torch": ("2.13.0", "2.13.0", "2.14.0"),
    }
    assert len(found.partings) == 2
