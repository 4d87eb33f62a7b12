"""A sweep of three arms and two seeds, logged online, killed once and resumed: what W&B has is what metrics.jsonl says,
and so is every number of the page and of the W&B report."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import explained_page
import explained_wandb
import pytest
from recomputed import Truth
from small_runs import SMALL
from wandb_child import command, environment, refuse_key
from wandb_server import serve
from wandb_spec import runs_of
from wandb_store import same, written

ARMS = {"clipped": ["algo=minirl"], "unclipped": ["algo=minirl_no_clip"], "R3": ["algo=minirl", "algo.routing=r3"]}
CLAIM = {"text": "clipping helps", "metric": "eval/avg", "arms": ["clipped", "unclipped"], "relation": "greater"}
CLAIMS = [CLAIM | {"at": "end"}, CLAIM | {"text": "clipping helps at its peak", "at": "peak"}]
SIZES = ["num_mini_batches=2", "num_updates=16", "eval.every=4", "train.checkpoint_every=4", "train.num_checkpoints=4"]
SWEEP = Path("outputs/sweeps/three")


def kill_one(process: subprocess.Popen[str]) -> str:
    """kill -9 of the first run that is past its first checkpoint and not at its end; its folder's name."""
    while process.poll() is None:
        for path in SWEEP.glob("*/run.json"):
            record, metrics = json.loads(path.read_text()), path.with_name("metrics.jsonl")
            count = len(metrics.read_text().splitlines()) if metrics.exists() else 0
            if record["state"] == "running" and 6 <= count <= 12:
                os.kill(record["pid"], signal.SIGKILL)
                return path.parent.name
        time.sleep(0.01)
    raise AssertionError("no run was met in the middle of its work")


@pytest.mark.slow
def test_what_arrives_and_what_is_reported_is_what_was_measured(outputs: Path) -> None:
    Path("outputs").mkdir(exist_ok=True)
    (Path("outputs") / "coldstarts").symlink_to(outputs / "coldstarts")
    plan = {"base": [*SMALL, *SIZES], "arms": ARMS, "seeds": [0, 1], "claims": CLAIMS}
    Path("three.yaml").write_text(json.dumps(plan))
    words = ["sweep", "three.yaml", "tracker=wandb", "tracker.mode=online"]
    with serve() as server:
        sweep = [sys.executable, "-m", "minirl.cli", *words]
        with subprocess.Popen(
            sweep, env=environment(server.address), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as first:
            victim = kill_one(first)
            told, _ = first.communicate(timeout=600)
        assert first.returncode == 1, told
        again = command(server.address, *words)
        assert again.returncode == 0, again.stdout + again.stderr
        reported = command(server.address, "report", "three", "--wandb")
        assert reported.returncode == 0, reported.stderr

    runs = {folder.name: folder for by_seed in runs_of(SWEEP).values() for folder in by_seed.values()}
    assert len(runs) == 6
    assert victim in runs
    assert len(json.loads((runs[victim] / "run.json").read_text())["horizons"]) == 2  # it was begun twice
    trained = {name: run for name, run in server.runs.items() if run.facts["jobType"] == "train"}
    assert trained.keys() == {f"three-{name}" for name in runs}
    for name, folder in runs.items():
        history = trained[f"three-{name}"].history
        assert [row["_step"] for row in history] == list(range(17))
        rows = [{k: v for k, v in row.items() if k[0] != "_" and not isinstance(v, dict)} for row in history]
        assert same(rows, written(folder))

    truth, html = Truth(SWEEP), (SWEEP / "report" / "index.html").read_text("utf-8")
    page = explained_page.explain(html, truth, written=written_on(html))
    page.settle()
    assert page.num_numbers > 5000
    (view,) = server.views
    report = explained_wandb.explain(json.loads(view["spec"]), truth, explained_page.drawn_on(html))
    report.settle()
    assert report.num_numbers > 60
    refuse_key(Path("outputs"), told + again.stdout + again.stderr + reported.stdout + reported.stderr)


def written_on(html: str) -> str:
    """When the page says that it was written, which is now."""
    (text,) = re.findall("<dt>Page written</dt><dd>([^<]+)</dd>", html)
    assert abs(time.time() - time.mktime(time.strptime(text[:16], "%Y-%m-%d %H:%M"))) < 600
    return text
