"""The whole way, with a real model: sweep, repeat, status, eval, report, all by the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from minirl.compose import load
from minirl.models.load import build as build_model
from minirl.tasks.registry import build as build_task

SMALL = """
base:
  - coldstart.checkpoint=start
  - num_mini_batches=2
  - num_updates=4
  - prompts_per_mini_batch=2
  - group_size=2
  - eval.every=2
  - eval.num_problems=4
  - train.checkpoint_every=2
arms:
  clip: [algo=minirl]
  R3: [algo=minirl, algo.routing=r3]
claims: [{text: T, metric: eval/avg, arms: [R3, clip], relation: within, margin: 0.5}]
"""


def minirl(*words: str, code: int = 0) -> str:
    program = "import sys; from minirl.cli import app; app()"
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def start(own_folder: Path) -> None:
    """A model that has learnt nothing, as a cold start that costs nothing."""
    config = load([])
    vocab_size = build_task(config.task, config.coldstart).vocab_size
    build_model(config.model, vocab_size=vocab_size, checkpoint=None).save_pretrained(own_folder / "start")
    (own_folder / "small.yaml").write_text(SMALL)


def test_a_sweep_from_its_file_to_its_page(start: None) -> None:
    output = minirl("sweep", "small.yaml", "--jobs", "2")
    assert "next: minirl report small" in output and "CPU seconds" in output
    folders = sorted(Path("outputs/sweeps/small").glob("*-s0"))
    assert len(folders) == 2
    for folder in folders:
        record = json.loads((folder / "run.json").read_text())
        assert record["state"] in ("finished", "collapsed") and record["sweep"] == "small"
        assert f"{record['identity']}-s{record['seed']}" == folder.name  # the launcher's folder is the run's own
        versions = [json.loads(line)["version"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert versions == [0, 1, 2, 3, 4]
        assert (folder / "config.yaml").is_file() and (folder / "log.txt").is_file()
    before = [(folder / "run.json").read_bytes() for folder in folders]

    assert "2 of 2 runs have their result already" in minirl("sweep", "small.yaml")
    assert [(folder / "run.json").read_bytes() for folder in folders] == before
    assert {path.name for path in Path().iterdir()} == {"outputs", "start", "small.yaml"}

    runs = json.loads(minirl("status", "small", "--json"))["runs"]
    assert [(run["updates"], run["num_updates"]) for run in runs] == [(4, 4), (4, 4)]
    figures = dict(line.split()[:2] for line in minirl("eval", str(folders[0])).splitlines() if line.strip())
    rows = (folders[0] / "metrics.jsonl").read_text().splitlines()
    assert figures["version"] == "4"
    assert float(figures["eval/avg"]) == pytest.approx(json.loads(rows[-1])["eval/avg"])
    assert Path(minirl("report", "small").strip().splitlines()[-1]).is_file()
