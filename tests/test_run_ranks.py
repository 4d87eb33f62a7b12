"""What several ranks make of a run that has ended: the same result, and no rank that waits for another."""

import os
import subprocess
import sys
from pathlib import Path

from small_runs import SMALL

from minirl.record import RunRecord


def two_ranks(outputs: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "minirl.run"]
    return subprocess.run(
        [*launcher, *SMALL, f"run.outputs={outputs}", *overrides],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_a_degenerate_run_is_a_result_on_every_rank_and_is_not_run_again(outputs):
    reject = ["algo.reject.level=token", "algo.reject.low=5", "algo.reject.high=6"]
    done = two_ranks(outputs, *reject)
    assert done.returncode == 0, done.stderr[-2000:]
    (folder,) = (outputs / "runs").glob("*")
    assert RunRecord(folder).read()["state"] == "degenerate"
    stamp = (folder / "run.json").stat().st_mtime_ns
    again = two_ranks(outputs, *reject)
    assert again.returncode == 0, again.stderr[-2000:]
    assert "nothing to do" in again.stdout
    assert (folder / "run.json").stat().st_mtime_ns == stamp
