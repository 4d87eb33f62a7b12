"""One process per run: what one run does to itself leaves the others alone, and is recorded."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import stub_sweep
from stub_sweep import PROGRAM, SWEEP, begun, finish, record, start, states, until, write_sweep

from minirl.report.read import read_sweep


@pytest.fixture(autouse=True)
def stubs(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub_sweep.prepare(own_folder, monkeypatch)


def test_one_crash_is_one_failed_run_and_repeating_runs_what_is_missing() -> None:
    """A run raises, one segfaults, one is killed: the others finish, the exit code is 1, the causes are told; the
    same command again runs these three only."""
    write_sweep(["good", "raises", "segfaults", "is killed", "diverges", "also good"], [0])
    code, output = finish(start("hydra.launcher.jobs=2"))
    assert code == 1, output
    assert states() == {
        ("good", 0): "finished",
        ("raises", 0): "failed",
        ("segfaults", 0): "failed",
        ("is killed", 0): "failed",
        ("diverges", 0): "diverged",
        ("also good", 0): "finished",
    }
    assert record("raises")["reason"] == "RuntimeError: this arm raises"
    assert record("segfaults")["reason"] == "its process was killed by SIGSEGV"
    assert record("is killed")["reason"] == "its process was killed by SIGKILL (out of memory?)"
    for told in ("FAILED raises s0: RuntimeError: this arm raises", "SIGSEGV", "| a line of the log", "CPU seconds"):
        assert told in output
    assert len(begun()) == 6
    finished = Path("outputs/sweeps/stub").glob("*/metrics.jsonl")
    before = {path: path.read_bytes() for path in finished}

    code, output = finish(start())
    assert code == 1 and "3 of 6 runs have their result already" in output
    assert sorted(line.rsplit(" ", 2)[0] for line in begun()[6:]) == ["is killed", "raises", "segfaults"]
    assert {path: path.read_bytes() for path in before} == before
    assert {path.name for path in Path().iterdir()} == {"outputs", "start", "stub.yaml"}  # no litter of Hydra's


def test_a_narrower_command_keeps_the_results_of_other_seeds() -> None:
    """The plan, and so the report, has every run that was begun, a failed one too; only the command's own seeds are
    run, and its exit code is theirs. An arm that is another experiment now has lost its old runs, and that is said."""
    write_sweep(["good", "also good", "raises"], [0, 1])
    assert finish(start())[0] == 1
    assert len(begun()) == 6
    code, output = finish(start("seed=0"))
    assert code == 1 and [line.split()[0] for line in begun()[6:]] == ["raises"], output
    both = {("good", 0): "finished", ("good", 1): "finished"}
    others = {("also good", 0): "finished", ("raises", 0): "failed", ("raises", 1): "failed"}
    assert states() == both | others | {("also good", 1): "finished"}
    assert "FAILED raises s0" in output and "FAILED raises s1" not in output
    assert read_sweep(Path("outputs/sweeps/stub")).seeds == (0, 1)

    changed = json.loads(Path("stub.yaml").read_text())
    changed["arms"]["also good"] = ["group_size=9"]
    Path("stub.yaml").write_text(json.dumps(changed))
    _, output = finish(start("seed=0"))
    assert states() == both | others
    assert "note: 2 runs in outputs/sweeps/stub are not of this plan" in output


def test_what_this_machine_cannot_hold_is_refused_before_anything_starts() -> None:
    """As by the dry run, where the runs are started here: the memory that a cluster has is not known here. What has its
    result is no reason to refuse."""
    write_sweep(["good"], [0])
    large = ["prompts_per_mini_batch=8000000", "machine.host_memory_gib=1"]
    code, output = finish(start(*large))
    assert code != 0 and "in the memory of a node that has 1.07 GB" in output, output
    assert begun() == [] and not SWEEP.exists()
    code, output = finish(start(*large, "hydra/launcher=submitit_local"))
    assert code == 0, output
    code, output = finish(start(*large))
    assert code == 0 and "1 of 1 runs have their result already" in output


def test_runs_that_do_not_fit_side_by_side_are_refused_with_how_many_do() -> None:
    """Each fits alone. The last one to come is alone, and is not counted with those that are done."""
    write_sweep(["good"], [0, 1])
    room_for_one = ["prompts_per_mini_batch=300000", "machine.host_memory_gib=1", "hydra.launcher.jobs=2"]
    code, output = finish(start(*room_for_one))
    assert code != 0 and "2 runs at a time in the memory of a node that has 1.07 GB: use --jobs=1" in output, output
    assert begun() == [] and not SWEEP.exists()
    code, output = finish(start(*room_for_one, "seed=0"))
    assert code == 0, output
    code, output = finish(start(*room_for_one))
    assert code == 0 and "1 of 2 runs have their result already" in output


def test_fail_fast_starts_nothing_after_the_first_failure() -> None:
    write_sweep(["raises", "good", "also good"], [0])
    code, output = finish(start("hydra.launcher.jobs=1", "hydra.launcher.fail_fast=true"))
    assert code == 1, output
    assert states() == {("raises", 0): "failed", ("good", 0): "pending", ("also good", 0): "pending"}


def test_ctrl_c_stops_the_runs_and_says_how_to_go_on() -> None:
    write_sweep(["good", "sleeps"], [0])
    process = start("hydra.launcher.jobs=2")
    until(
        lambda: (
            any("sleeps" in line for line in begun()) and ("good", 0) in states() and states()["good", 0] == "finished"
        )
    )
    process.send_signal(signal.SIGINT)
    code, output = finish(process)
    assert code == 130, output
    assert states() == {("good", 0): "finished", ("sleeps", 0): "interrupted"}
    assert "repeat the command to go on" in output
    with pytest.raises(ProcessLookupError):
        os.kill(record("sleeps")["pid"], 0)


def test_runs_do_not_outlive_a_killed_sweep() -> None:
    """kill -9 of the command: its runs stop as after Ctrl-C, so a second command does not run beside them."""
    write_sweep(["sleeps"], [0])
    process = start()
    until(lambda: len(begun()) == 1)
    process.kill()
    finish(process)
    until(lambda: states()["sleeps", 0] == "interrupted")


def test_a_process_that_is_gone_shows_as_lost() -> None:
    write_sweep(["good"], [0])
    assert finish(start())[0] == 0
    path = next(Path("outputs/sweeps/stub").glob("*/run.json"))
    tree = json.loads(path.read_text())
    gone = subprocess.Popen(["true"])
    gone.wait()
    path.write_text(json.dumps(tree | {"state": "running", "pid": gone.pid}))
    assert states() == {("good", 0): "lost"}
    code, output = finish(start())
    assert code == 0, output
    assert len(begun()) == 2 and states() == {("good", 0): "finished"}


def test_two_commands_share_the_work_and_run_nothing_twice() -> None:
    write_sweep(["naps", "naps too", "good"], [0, 1])
    first, second = start("hydra.launcher.jobs=1"), start("hydra.launcher.jobs=1")
    results = [finish(first), finish(second)]
    assert [code for code, _ in results] == [0, 0], results
    assert len(begun()) == len(set(begun())) == 6
    assert set(states().values()) == {"finished"}


def test_two_commands_of_different_seeds_have_one_plan() -> None:
    """While the first one works, the second adds its runs; what the first has not begun yet stays planned."""
    write_sweep(["naps"], [0])
    first = start("seed=7,8", "hydra.launcher.jobs=1")
    until(lambda: len(begun()) == 1)
    second = start("hydra.launcher.jobs=1")
    results = [finish(first), finish(second)]
    assert [code for code, _ in results] == [0, 0], results
    assert states() == {("naps", 0): "finished", ("naps", 7): "finished", ("naps", 8): "finished"}


def test_where_there_are_gpus_processes_are_fresh_and_each_slot_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA context does not survive a fork; no device is touched here, only named."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    write_sweep(["naps", "naps too"], [0])
    code, output = finish(start("run.device=auto"))
    assert code == 0, output
    assert sorted(line.rpartition(" ")[2] for line in begun()) == ["6", "7"]


@pytest.mark.slow
def test_a_run_of_several_ranks_is_held_by_torchrun() -> None:
    write_sweep(["tells its rank", "good"], [0])
    code, output = finish(start("hydra.launcher.processes=2"))
    assert code == 0, output
    told = sorted(Path(record("tells its rank")["folder"]).glob("rank*.json"))
    assert [json.loads(path.read_text())["WORLD_SIZE"] for path in told] == ["2", "2"]
    assert set(states().values()) == {"finished"}


def test_a_told_command_ends_and_its_hint_names_its_outputs() -> None:
    """SIGTERM, as a scheduler sends it to an allocation in which the sweep runs."""
    write_sweep(["leaves when asked"], [0])
    process = start("run.outputs=my results")
    until(lambda: list(Path("my results").glob("sweeps/stub/starts.txt")))
    process.send_signal(signal.SIGTERM)
    code, output = finish(process)
    assert code == 130 and "stopping: every run finishes its step" in output and "1 interrupted" in output
    code, output = finish(start("run.outputs=my results"))
    assert code == 0 and "next: minirl report stub --outputs 'my results'" in output, output


def test_a_longer_horizon_goes_on_with_a_finished_run() -> None:
    write_sweep(["good"], [0])
    assert finish(start())[0] == 0
    folder = next(Path("outputs/sweeps/stub").glob("*/run.json")).parent
    assert finish(start("num_updates=8"))[0] == 0 and len(begun()) == 1
    assert finish(start("num_updates=16"))[0] == 0 and len(begun()) == 2
    assert json.loads((folder / "run.json").read_text())["num_updates"] == 16


def test_a_plain_multirun_and_a_launcher_of_hydras_own() -> None:
    """`-m algo=minirl,grpo seed=0,1` without a file; any launcher works under our sweeper."""
    shared = ["coldstart.checkpoint=start", "num_updates=8", "hydra/launcher=basic"]
    words = [sys.executable, "-c", PROGRAM, *shared, "algo=minirl,grpo", "seed=0,1", "run.group=stub"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(states()) == {(f"algo={name}", seed) for name in ("minirl", "grpo") for seed in (0, 1)}
    assert set(states().values()) == {"finished"}
    trees = [json.loads(path.read_text()) for path in Path("outputs/sweeps/stub").glob("*/run.json")]
    assert len({(tree["identity"], tree["seed"]) for tree in trees}) == 4
    assert {tree["sweep"] for tree in trees} == {"stub"}
