"""The W&B report: written down without network, and saved to a server on the loopback address. Its numbers are taken
out of the finished specification and held against others, computed here from metrics.jsonl."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cold_sweep import write_cold_sweep
from synthetic_sweep import ARMS, BASE, write_sweep
from typer.testing import CliRunner
from wandb_child import command
from wandb_server import KEY, serve
from wandb_spec import end_of, grids, runs_of, tables
from wandb_store import StoredRun, written

from minirl.cli import app
from minirl.report.markdown import plain

TRACKER = {"name": "wandb", "project": "mine", "entity": None, "mode": "online"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("sweeps") / "synthetic", base=BASE | {"tracker": TRACKER})


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cold_sweep(tmp_path_factory.mktemp("sweeps") / "cold")


def specified(folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `--out` writes, with a proxy in place of the network that refuses everything, and no key."""
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    done = CliRunner().invoke(app, ["report", str(folder), "--wandb", "--out", str(out)])
    assert done.exit_code == 0, done.output
    paths = [Path(line) for line in done.output.splitlines() if line.endswith(".json")]
    return [json.loads(path.read_text("utf-8")) for path in paths]


def test_panels_are_grouped_by_arm_in_the_section_where_the_arm_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W08: the group is a key of the configuration, and W&B keeps those under `.value`."""
    (spec,) = specified(folder, tmp_path / "spec.json", monkeypatch)
    (grid,) = grids(spec)
    assert [chosen["name"] for chosen in grid["runSets"]] == list(ARMS)
    for chosen in grid["runSets"]:
        filters = {
            (each["key"]["section"], each["key"]["name"]): each["value"] for each in chosen["filters"]["filters"]
        }
        assert filters == {
            ("run", "group"): "synthetic",
            ("run", "jobType"): "train",
            ("config", "arm"): chosen["name"],
        }
        assert chosen["grouping"] == [{"section": "config", "name": "arm.value"}]
    plots = [panel["config"] for panel in grid["panelBankSectionConfig"]["panels"]]
    drawn = {plot["metrics"][0] for plot in plots}
    wanted = {"reward/mean", "eval/avg", "entropy/mean", "mismatch/kl_k3", "staleness/kl_k3", "clip/fraction"}
    assert wanted | {"optim/grad_norm", "routing/disagree_token_layer"} <= drawn
    assert {(plot["xAxis"], plot["groupAgg"], plot["groupArea"]) for plot in plots} == {("version", "mean", "stddev")}
    assert {plot["metrics"][0] for plot in plots if plot.get("yLogScale")} >= {"mismatch/kl_k3", "optim/grad_norm"}


def test_the_numbers_are_those_of_metrics_jsonl(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (spec,) = specified(folder, tmp_path / "spec.json", monkeypatch)
    verdicts, ends, every_run, keys = tables(spec)
    runs = runs_of(folder)
    assert len(every_run) == len(ARMS) * 5
    for row in every_run:
        run = runs[row["arm"]][int(row["seed"])]
        assert float(row["end"]) == pytest.approx(end_of(run, "eval/avg"), rel=1e-7)
        assert float(row["peak"]) == pytest.approx(max(r["eval/avg"] for r in written(run) if "eval/avg" in r))
    assert len(ends) > 8
    for row in ends:
        metric = row["metric at the end"].strip("`")
        for arm in ARMS:
            by_seed = [end_of(run, metric) for run in runs[arm].values() if any(metric in r for r in written(run))]
            assert (row[arm] == "–") == (not by_seed)
            if by_seed:
                assert float(row[arm]) == pytest.approx(np.mean(by_seed), rel=1e-6)
    effect = np.mean([end_of(runs["R3"][s], "eval/avg") - end_of(runs["MiniRL"][s], "eval/avg") for s in range(5)])
    (shown,) = [row["effect"] for row in verdicts if row["claim"] == "R3 ends above MiniRL"]
    assert float(shown) == pytest.approx(effect, rel=1e-7)
    assert {row["key"].strip("`") for row in keys} >= {"algo.routing", "algo.trust_region.kind", "runs"}


def test_cold_starts_have_a_report_of_their_own(cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main, own = specified(cold, tmp_path / "spec.json", monkeypatch)
    assert (tmp_path / "spec.coldstarts.json").exists()
    for spec in (main, own):
        spreads = next(found for found in tables(spec) if found and "spread" in found[0])
        assert [row["spread"] for row in spreads] == ["first", "peak", "end", "trend"]
        runs = runs_of(cold)
        for seed in range(5):
            ends = [end_of(by_seed[seed], "eval/avg") for by_seed in runs.values()]
            assert float(spreads[2][f"seed {seed}"]) == pytest.approx(max(ends) - min(ends))
    assert [p["config"]["metrics"][0] for p in grids(own)[0]["panelBankSectionConfig"]["panels"]] == [
        "eval/avg",
        "eval/length",
    ]


@pytest.mark.parametrize(
    ("words", "kind"), [(["--draft"], "runs/draft"), pytest.param([], "runs", marks=pytest.mark.slow)]
)
def test_it_is_saved_where_the_runs_are(cold: Path, words: list[str], kind: str) -> None:
    with serve() as server:
        server.runs["a run"] = StoredRun(facts={"project": "minirl"})
        done = command(server.address, "report", str(cold), "--wandb", *words)
        assert done.returncode == 0, done.stderr
        main, own = server.views[-2:]
        assert {main["type"], own["type"]} == {kind}
        assert (main["entityName"], main["projectName"]) == ("someone", "minirl")
        assert main["displayName"] in own["displayName"]
        addresses = [line for line in done.stdout.splitlines() if "/reports/" in line]
        assert len(addresses) == 2
        chosen = grids(json.loads(main["spec"]))[0]["runSets"][0]["project"]
        assert (chosen["name"], chosen["entityName"]) == ("minirl", "someone")


@pytest.mark.slow
def test_a_server_that_is_away_leaves_the_page(cold: Path) -> None:
    gone = command("http://127.0.0.1:9", "report", str(cold), "--wandb")
    assert gone.returncode == 1
    assert KEY not in gone.stderr
    assert "index.html" in gone.stdout  # the page is there all the same


@pytest.mark.parametrize(
    ("words", "message"), [(["--draft"], "--draft is of the W&B report"), (["--out", "x.json"], "add --wandb")]
)
def test_options_of_the_wandb_report_need_it(folder: Path, words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["report", str(folder), *words])
    assert done.exit_code == 2
    assert message in done.output


def test_a_missing_key_is_bad_input(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    done = CliRunner().invoke(app, ["report", str(folder), "--wandb"])
    assert done.exit_code == 2
    assert "WANDB_API_KEY" in done.output


def test_names_from_outside_are_no_markup() -> None:
    assert plain("a|b\n<script> [x](y) **") == r"a\|b \<script\> \[x\]\(y\) \*\*"
