"""Sweeps in which no arm differs from another, with the autocorrelation and the seed effects of toy runs."""

from typing import Any

import numpy as np
from sweep_in_memory import arm, run, sweep

from minirl.report.read import Sweep

VERSIONS = list(range(0, 101, 4))
CLAIMS: list[dict[str, Any]] = [
    {"text": "a", "metric": "reward/mean", "at": "end", "arms": ["B", "A"], "relation": "greater", "margin": 0.0},
    {"text": "b", "metric": "reward/mean", "at": "area", "arms": ["A", "C"], "relation": "less", "margin": 0.0},
    {"text": "c", "metric": "reward/mean", "at": "peak", "arms": ["B", "C"], "relation": "ratio", "margin": 1.0},
    {"text": "d", "metric": "reward/mean", "at": "update 60", "arms": ["A", "C"], "relation": "within", "margin": 1e-6},
]


def null_sweep(random: np.random.Generator, effect: float, num_seeds: int = 5) -> Sweep:
    """Three arms of AR(1) curves around 0.5; `effect` is added to B only. Now and then a run falls, in any arm."""
    shared = random.normal(0, 0.03, num_seeds)

    def rewards(seed: int, shift: float) -> dict[int, float]:
        noise = np.zeros(len(VERSIONS))
        for i in range(1, len(noise)):
            noise[i] = 0.8 * noise[i - 1] + random.normal(0, 0.03)
        fall = 0.2 * (random.random() < 0.1)
        values = 0.5 + shared[seed] + shift + noise - fall * np.linspace(0, 1, len(noise))
        return dict(zip(VERSIONS, np.clip(values, 0.01, 1.0).tolist(), strict=True))

    shifts = {"A": 0.0, "B": effect, "C": 0.0}
    arms = [arm(name, [run(s, {"reward/mean": rewards(s, x)}) for s in range(num_seeds)]) for name, x in shifts.items()]
    return sweep(arms, CLAIMS)
