"""A rank that is killed in mid-step ends the run with a record that says so, and a checkpoint to go on from."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from small_runs import SMALL, rows

from minirl.policy.checkpoint import newest
from minirl.record import RunRecord
from minirl.world import fault


def two_ranks(
    program: list[str], outputs: Path, *overrides: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *program]
    return subprocess.run(
        [*launcher, *SMALL, f"run.outputs={outputs}", *overrides],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )


def test_what_the_death_of_another_rank_looks_like():
    peer = RuntimeError("[gloo/transport/tcp/pair.cc:537] Connection closed by peer [127.0.0.1]:10234")
    for error in (peer, dist.DistBackendError("NCCL communicator was aborted")):
        assert fault(error).startswith("another rank died") and str(error) in fault(error)
    assert fault(ValueError("no")) == "ValueError: no"


@pytest.mark.slow
def test_a_rank_killed_in_mid_step_leaves_a_resumable_run(outputs):
    """Killed at update 5 of 8, when it had saved 4; repeated, the run ends with the rows of one that nobody killed."""
    (outputs / "whole").mkdir()
    (outputs / "whole" / "coldstarts").symlink_to(outputs / "coldstarts")
    whole = two_ranks(["-m", "minirl.run"], outputs / "whole")
    assert whole.returncode == 0, whole.stderr[-2000:]
    program = [str(Path(__file__).with_name("killed_rank.py"))]
    killed = two_ranks(program, outputs, KILLED_RANK="1", KILLED_VERSION="5")
    assert killed.returncode != 0
    (run,) = (outputs / "runs").glob("*-s0")
    record = RunRecord(run).read()
    assert record["state"] == "failed" and record["reason"].startswith("another rank died"), record
    assert newest(run / "checkpoints").name == "4"
    again = two_ranks(["-m", "minirl.run"], outputs)
    assert again.returncode == 0, again.stderr[-2000:]
    assert RunRecord(run).read()["state"] == "finished"
    (unharmed,) = (outputs / "whole" / "runs").glob("*-s0")
    assert rows(run) == rows(unharmed)


REASONS = {
    "missing": "MissingRoutes: rank 1: token 0 of response 0 has no route to replay under algo.routing_missing=fail",
    "broken": "BrokenRoutes: rank 1: token 0 of response 0 has the route",
    "engine": "IndexError: rank 1: the engine lost a response",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", REASONS)
def test_what_one_rank_refuses_ends_all_of_them_with_its_reason(outputs, fault):
    """Rank 1 fails at update 4 of 8: rank 0, which writes the record, would wait for it. Repeated without the fault,
    the run goes on from its checkpoint."""
    replay = ["algo.routing=r3", "metrics.live_every=8"]
    program = [str(Path(__file__).with_name("routeless_rank.py"))]
    refused = two_ranks(program, outputs, *replay, FAULT=fault)
    assert refused.returncode == 1, refused.stderr[-2000:]
    (run,) = (outputs / "runs").glob("*-s0")
    record = RunRecord(run).read()
    assert record["state"] == "failed" and record["reason"].startswith(REASONS[fault]), record
    assert newest(run / "checkpoints").name == "4"
    again = two_ranks(["-m", "minirl.run"], outputs, *replay)
    assert again.returncode == 0, again.stderr[-2000:]
    assert RunRecord(run).read()["state"] == "finished" and len(rows(run)) == 9
