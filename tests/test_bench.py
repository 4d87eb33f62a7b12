"""The arithmetic of the benchmark's table."""

import importlib.util
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench" / "updates.py"


def test_a_line_is_per_update_and_tokens_are_per_cpu_second() -> None:
    spec = importlib.util.spec_from_file_location("bench_updates", BENCH)
    assert spec is not None and spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    step = {f"time/{phase}_cpu": 0.25 for phase in ("rollout", "reward", "old", "sync")}
    rows = [
        step | {"time/update_cpu": 1.0, "time/eval_cpu": 9.0, "tokens/response": 600.0},
        {"time/update_cpu": 3.0},  # the second mini-batch of one rollout batch
    ]
    name, *figures = bench.describe(rows, 2).split()
    assert name == "N=2"
    assert [float(figure.replace(",", "")) for figure in figures] == pytest.approx(
        [0.125, 0.125, 0.125, 2.0, 0.125, 2.5, 600 / 0.25, 600 / 5.0]
    )
