"""A real run, small: cold start, rollouts, updates, resume. One cold start serves all tests of this file."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_runs import SMALL, rows, start

from minirl.config import ConfigError
from minirl.record import RunRecord, State
from minirl.run import _recorded
from minirl.types import Diverged


def command(outputs: Path, *overrides: str) -> list[str]:
    return [sys.executable, "-m", "minirl.run", *SMALL, f"run.outputs={outputs}", *overrides]


def test_a_run_leaves_a_complete_record(outputs):
    state, folder = start(outputs, "num_mini_batches=2", "algo.routing=r3")
    assert state is State.finished
    record = RunRecord(folder).read()
    assert record["state"] == "finished" and record["version"] == 8 and record["num_updates"] == 8
    assert (folder / "config.yaml").exists() and record["coldstart"]["content"]
    table = rows(folder)
    assert [row["version"] for row in table] == list(range(9))
    assert [row["version"] for row in table if "eval/avg" in row] == [0, 4, 8]
    assert [row["version"] for row in table if "reward/mean" in row] == [0, 2, 4, 6]
    assert all("optim/grad_norm" in row for row in table[:8])
    assert table[0]["routing/replayed"] == 1.0
    assert table[0]["staleness/first"] == pytest.approx(0, abs=1e-5)
    assert "mismatch_live/kl_k3" in table[0] and "mismatch_live/kl_k3" not in table[2]


def test_a_finished_run_is_not_run_again_and_a_longer_horizon_continues_it(outputs):
    _, folder = start(outputs, "num_updates=4")
    short = rows(folder)
    stamp = (folder / "metrics.jsonl").stat().st_mtime_ns
    start(outputs, "num_updates=4")
    assert (folder / "metrics.jsonl").stat().st_mtime_ns == stamp
    _, same = start(outputs, "num_updates=8")
    assert same == folder and RunRecord(folder).read()["horizons"] == [4, 8]
    assert rows(folder)[:4] == short[:4]
    (outputs / "whole").mkdir()
    (outputs / "whole" / "coldstarts").symlink_to(outputs / "coldstarts")
    _, whole = start(outputs / "whole", "num_updates=8")
    assert rows(folder) == rows(whole)


def test_a_run_keeps_the_evaluation_it_began_with(outputs):
    start(outputs, "num_updates=2", "eval.every=2", "train.checkpoint_every=2")
    with pytest.raises(ConfigError, match=r"eval\.num_problems=9: .* is evaluated with eval\.num_problems=8"):
        start(outputs, "num_updates=4", "eval.every=2", "train.checkpoint_every=2", "eval.num_problems=9")


def test_an_unquantised_engine_is_the_trainer(outputs):
    _, folder = start(outputs, "engine.numerics=fp32", "num_updates=4")
    for row in rows(folder)[:4]:
        assert abs(row["mismatch/kl_k1"]) < 1e-5 and row["mismatch/kl_k3"] < 1e-8
        assert row["is_weight/mean"] == pytest.approx(1, abs=1e-4)


def test_divergence_is_a_result(outputs, monkeypatch):
    def diverge(self, mini_batch, algo):
        raise Diverged(self.version, "the gradient norm")

    monkeypatch.setattr("minirl.policy.fsdp.FsdpPolicy.update", diverge)
    state, folder = start(outputs)
    assert state is State.diverged and "gradient norm" in RunRecord(folder).read()["reason"]


def test_rejecting_everything_is_a_result(outputs):
    reject = ["algo.reject.level=token", "algo.reject.low=5", "algo.reject.high=6"]
    state, folder = start(outputs, *reject)
    assert state is State.degenerate and "rejected" in RunRecord(folder).read()["reason"]


def test_a_crash_is_recorded_and_raised(outputs, monkeypatch):
    def crash(self, prompts, sampling, group_size):
        raise RuntimeError("the engine died")

    monkeypatch.setattr("minirl.engine.torch_engine.TorchEngine.generate", crash)
    with pytest.raises(RuntimeError):
        start(outputs)
    (folder,) = (outputs / "runs").glob("*")
    record = RunRecord(folder).read()
    assert record["state"] == "failed" and "the engine died" in record["reason"]


def test_the_record_counts_what_a_killed_process_has_spent(own_folder):
    """Of the one before it only rows are left."""
    (own_folder / "metrics.jsonl").write_text('{"version": 0, "time/update_cpu": 90.0, "time/rollout_cpu": 10.0}\n')
    record = RunRecord(own_folder)
    record.update(state="running")
    assert _recorded(record, {"num_updates": 8}, lambda: State.interrupted) == "interrupted"
    once = record.read()["cpu_seconds"]
    assert 100 <= once < 150
    _recorded(record, {"num_updates": 8}, lambda: State.finished)
    assert once <= record.read()["cpu_seconds"] < 150


def test_kill_then_repeat_gives_the_unkilled_metrics(outputs):
    """SIGKILL in mid-run; the repeated command continues, and no version is missing, doubled or different."""
    (outputs / "killed").mkdir()
    (outputs / "killed" / "coldstarts").symlink_to(outputs / "coldstarts")
    extra = ["num_updates=24", "train.checkpoint_every=4", "num_mini_batches=2"]
    process = subprocess.Popen(command(outputs / "killed", *extra), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 180
    while process.poll() is None and time.monotonic() < deadline:
        files = list((outputs / "killed").glob("runs/*/metrics.jsonl"))
        if files and len(files[0].read_text().splitlines()) >= 10:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.01)
    assert process.wait() == -signal.SIGKILL
    state, killed = start(outputs / "killed", *extra)
    assert state is State.finished or state is State.collapsed
    _, whole = start(outputs, *extra)
    assert [row["version"] for row in rows(killed)] == list(range(25))
    assert rows(killed) == rows(whole)
    assert (killed / "metrics.cut.jsonl").exists()


def test_hydras_own_door_refuses_bad_input_in_one_line():
    done = subprocess.run([sys.executable, "-m", "minirl.run", "algo=grop"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "error: algo=grop: no such algo; did you mean grpo?\n")


def test_two_ranks_make_the_run_of_one(outputs):
    (outputs / "two").mkdir()
    (outputs / "two" / "coldstarts").symlink_to(outputs / "coldstarts")
    extra = ["num_updates=4", "num_mini_batches=2", "algo.routing=r3", "engine.numerics=fp32"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "minirl.run"]
    done = subprocess.run(
        [*launcher, *SMALL, f"run.outputs={outputs / 'two'}", *extra],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (two,) = (outputs / "two" / "runs").glob("*")
    _, one = start(outputs, *extra)
    assert two.name == one.name  # the world size is not part of what a run is
    for left, right in zip(rows(two), rows(one), strict=True):
        assert left.keys() == right.keys()
        for name, value in right.items():
            assert left[name] == pytest.approx(value, rel=2e-3, abs=2e-5), (right["version"], name)
