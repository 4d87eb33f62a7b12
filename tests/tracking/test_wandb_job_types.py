"""What is no training run is told to W&B too: an evaluation on its own, and the making of a cold start."""

import json
from pathlib import Path

import pytest
from small_runs import SMALL, start
from wandb_files import offline_runs
from wandb_store import same, written

from minirl.compose import load, read
from minirl.config import ConfigError
from minirl.examine import examine
from minirl.tracking.designation import of_coldstart
from minirl.tracking.registry import announce, require


def test_an_evaluation_is_a_run_of_its_own(outputs: Path) -> None:
    _, folder = start(outputs, "num_updates=1", "eval.every=1", "run.name=an arm", "tracker=wandb")
    found = examine(read(folder / "config.yaml", ["eval.num_samples=3"]), folder)
    (told,) = offline_runs(found.table.with_suffix(""))
    assert told.run.job_type == "eval"
    assert told.run.run_id == f"eval-{found.table.stem}"
    assert (told.config["arm"], told.config["eval"]["num_samples"]) == ("an arm", 3)
    assert told.config["record"]["coldstart"]["content"]
    assert told.rows == [{"version": 1, **found.figures}]
    (trained,) = offline_runs(folder)
    assert same(trained.rows, written(folder))
    assert trained.history[0]["samples._type"] == "table-file"
    assert any(name.startswith("histogram/is_weight/") for name in trained.history[0])
    assert "histogram/routing/by_layer.values" in trained.history[0]


def test_a_cold_start_shows_how_it_was_learnt(tmp_path: Path) -> None:
    config = load(["tracker=wandb", "run.group=figure"])
    rows = [{"version": step, "loss": 1 / step, "accuracy": None if step < 30 else 0.5} for step in (20, 40, 60)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    announce(config, tmp_path, of_coldstart(config, "abcdef"), 1)
    assert not (tmp_path / "wandb").exists()
    announce(config, tmp_path, of_coldstart(config, "abcdef"), 0)
    (told,) = offline_runs(tmp_path)
    assert (told.run.job_type, told.run.run_id, told.run.run_group) == ("coldstart", "coldstart-abcdef", "figure")
    assert same(told.rows, rows)
    assert told.summary["ending"] == "finished"


def test_a_missing_key_is_told_before_a_cold_start_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from minirl.coldstart import ensure
    from minirl.world import World

    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    config = load([*SMALL, "tracker=wandb", "tracker.mode=online", f"run.outputs={tmp_path}"])
    with pytest.raises(ConfigError, match="WANDB_API_KEY"):
        ensure(config, World.join("cpu"), print)
    assert not (tmp_path / "coldstarts").exists()
    require(load(["tracker=wandb"]))
