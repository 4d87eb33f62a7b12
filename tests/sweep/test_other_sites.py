"""submitit without a scheduler, and Ray: the same folder, record, log and endings as anywhere."""

import signal
from pathlib import Path

import pytest
import stub_sweep
from stub_sweep import begun, finish, record, start, states, until, write_sweep

RAY = "hydra/launcher=ray"
SUBMITIT = "hydra/launcher=submitit_local"

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def stubs(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub_sweep.prepare(own_folder, monkeypatch)


def options(launcher: str) -> list[str]:
    if launcher != RAY:
        return [launcher]
    pytest.importorskip("ray")
    return [launcher, "hydra.launcher.jobs=2"]


@pytest.mark.parametrize("launcher", [SUBMITIT, RAY])
def test_runs_end_as_they_do_anywhere_and_repeating_runs_what_is_missing(launcher: str) -> None:
    write_sweep(["good", "raises", "is killed"], [0])
    words = options(launcher)
    code, output = finish(start(*words))
    assert code == 1, output
    assert states() == {("good", 0): "finished", ("raises", 0): "failed", ("is killed", 0): "failed"}
    assert record("good")["job"].split()[0] == ("ray" if launcher == RAY else "local")
    assert record("raises")["reason"] == "RuntimeError: this arm raises"
    assert "killed by SIGKILL" in record("is killed")["reason"]
    assert "FAILED raises s0: RuntimeError: this arm raises" in output and "| a line of the log" in output
    assert (Path(record("good")["folder"]) / "log.txt").is_file()

    code, output = finish(start(*words))
    assert code == 1 and "1 of 3 runs have their result already" in output
    assert sorted(line.rsplit(" ", 2)[0] for line in begun()[3:]) == ["is killed", "raises"]


@pytest.mark.parametrize("launcher", [SUBMITIT, RAY])
def test_ctrl_c_lets_the_runs_save_and_repeating_goes_on(launcher: str) -> None:
    write_sweep(["leaves when asked"], [0])
    words = options(launcher)
    process = start(*words)
    until(lambda: len(begun()) == 1)
    process.send_signal(signal.SIGINT)
    code, output = finish(process)
    assert code == 130 and "repeat the command to go on" in output, output
    until(lambda: states() == {("leaves when asked", 0): "interrupted"})
    code, output = finish(start(*words))
    assert code == 0, output
    assert states() == {("leaves when asked", 0): "finished"} and len(begun()) == 2
