"""Runs small enough for a test: two-digit sums, a model of two layers, a handful of updates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from minirl.compose import compose
from minirl.record import State
from minirl.run import run

SMALL = [
    "task.digits=2",
    "model.hidden_size=32",
    "model.num_layers=2",
    "model.num_experts=4",
    "model.num_experts_per_token=2",
    "coldstart.batch_size=64",
    "coldstart.min_steps=300",
    "coldstart.max_steps=800",
    "coldstart.target_accuracy=0.12",
    "coldstart.eval_problems=64",
    "prompts_per_mini_batch=4",
    "group_size=4",
    "num_updates=8",
    "eval.every=4",
    "eval.num_problems=8",
    "train.checkpoint_every=4",
    "train.optim.warmup_updates=2",
    "metrics.live_every=4",
]


def start(outputs: Path, *overrides: str) -> tuple[State, Path]:
    """Runs SMALL with further overrides; how it ended and the folder of the run."""
    words = [*SMALL, f"run.outputs={outputs}", *overrides]
    before = set((outputs / "runs").glob("*"))
    state = run(compose(words), words)
    folders = set((outputs / "runs").glob("*"))
    return state, (folders - before or folders).pop()


def rows(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without the figures that measure the machine."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]
