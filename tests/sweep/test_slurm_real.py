"""A real run on two nodes of the fake SLURM, told in its middle that its time is over."""

import json
import subprocess
import sys
import time
from pathlib import Path

import fake_slurm
import pytest
from small_runs import SMALL, rows, start

EXTRA = ["num_updates=8", "num_mini_batches=2", "engine.numerics=fp32", "train.checkpoint_every=8", "run.device=cpu"]
PROGRAM = "import sys; from minirl.cli import app; app()"


@pytest.mark.slow
def test_two_nodes_save_together_and_make_the_run_of_one_process(
    outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = outputs / "slurm"
    for name, value in fake_slurm.install(slurm).items():
        monkeypatch.setenv(name, value)
    (outputs / "two.yaml").write_text(json.dumps({"base": [*SMALL, *EXTRA], "arms": {"one": ["algo=minirl"]}}))
    words = ["sweep", "two.yaml", f"run.outputs={outputs}", "hydra/launcher=submitit_slurm"]
    command = [sys.executable, "-c", PROGRAM, *words, "hydra.launcher.parameters.nodes=2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def done() -> int:
        return sum(len(path.read_text().splitlines()) for path in outputs.glob("sweeps/two/*/metrics.jsonl"))

    deadline = time.monotonic() + 600
    while done() < 1 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    (number,) = fake_slurm.jobs(slurm)
    subprocess.run([slurm / "bin" / "scancel", str(number), "--signal", "USR2"], check=True)
    output, _ = process.communicate(timeout=900)
    (folder,) = outputs.glob("sweeps/two/*-s0")
    assert process.returncode == 0, output + (folder / "log.txt").read_text()
    assert (slurm / str(number) / "turns").read_text() == "2"
    assert "SIGTERM: this step is finished and saved" in (folder / "log.txt").read_text()
    assert not (folder / "metrics.cut.jsonl").exists()  # the save came before the next row
    _, one = start(outputs, *EXTRA)
    for left, right in zip(rows(folder), rows(one), strict=True):
        for name, value in right.items():
            assert left[name] == pytest.approx(value, rel=2e-3, abs=2e-5), (right["version"], name)
