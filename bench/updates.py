"""CPU seconds of one update of the quickstart's model, by phase, and sampled tokens per CPU second.

    make bench        or: python bench/updates.py [OVERRIDES]

Runs `minirl run` for a few steps at N = 1 and N = 8 in a temporary folder and reads the time/*_cpu columns of its
metrics.jsonl. The first step is left out: it pays for first calls. CPU seconds do not depend on what else the machine
does, so two commits can be compared on a busy laptop.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from omegaconf import OmegaConf

from minirl.compose import sweeps_dir

PHASES = ("rollout", "reward", "old", "update", "sync")
UPDATES = 32
NUM_MINI_BATCHES = (1, 8)


def minirl(*words: str) -> str:
    """Standard output of a minirl command; one that fails has said why on stderr, and ends the benchmark."""
    done = subprocess.run([sys.executable, "-m", "minirl.cli", *words], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout


def rows_of_run(overrides: list[str], num_mini_batches: int) -> list[dict[str, float]]:
    """The rows of a short run without evaluations, less its first step and its closing row."""
    with tempfile.TemporaryDirectory() as outputs:
        sizes = [f"num_updates={UPDATES}", f"num_mini_batches={num_mini_batches}"]
        quiet = [f"eval.every={UPDATES}", f"metrics.live_every={UPDATES}", f"train.checkpoint_every={UPDATES}"]
        minirl("run", *overrides, *sizes, *quiet, f"run.outputs={outputs}")
        (path,) = Path(outputs).glob("runs/*/metrics.jsonl")
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [row for row in rows if num_mini_batches <= row["version"] < UPDATES]


def seconds(rows: list[dict[str, float]], phase: str) -> float:
    return sum(row.get(f"time/{phase}_cpu", 0.0) for row in rows)


def describe(rows: list[dict[str, float]], num_mini_batches: int) -> str:
    """One line of the table."""
    spent = {phase: seconds(rows, phase) for phase in PHASES}
    total, tokens = sum(spent.values()), sum(row.get("tokens/response", 0.0) for row in rows)
    parts = "".join(f"{spent[phase] / len(rows):9.3f}" for phase in PHASES)
    per_update = f"{total / len(rows):9.3f}"
    return f"N={num_mini_batches:<3d}{parts}{per_update}{tokens / spent['rollout']:16,.0f}{tokens / total:14,.0f}"


def main(overrides: list[str]) -> None:
    quickstart = [word for word in OmegaConf.load(sweeps_dir() / "quickstart.yaml").base if "num_mini" not in word]
    overrides = [*quickstart, *overrides]
    start = minirl("coldstart", *overrides).splitlines()[-1]
    print("CPU seconds per update (one process, run.num_threads=1) and sampled tokens per CPU second")
    print("     " + "".join(f"{phase:>9}" for phase in (*PHASES, "sum")) + f"{'tokens/rollout':>16}{'tokens/all':>14}")
    for num_mini_batches in NUM_MINI_BATCHES:
        rows = rows_of_run([*overrides, f"coldstart.checkpoint={start}"], num_mini_batches)
        print(describe(rows, num_mini_batches), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
