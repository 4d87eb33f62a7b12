"""Curves of real toy runs, kept as numbers in toy_traces.json, and sweeps without any effect made from them.

    python tests/report/toy_traces.py OUTPUTS/sweeps/on_policy OUTPUTS/sweeps/off_policy_n8 ...

writes the file anew from the folders of finished sweeps.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sweep_in_memory import arm, curve

from minirl.report.read import Arm, Run, Sweep, read_sweep

FILE = Path(__file__).with_suffix(".json")
KEPT = ("eval/avg", "eval/se", "eval/length", "reward/mean", "mismatch/kl_k1", "entropy/mean")
DIGITS = 4
# claims that hold where no arm differs from another are none that a null sweep could wrongly reproduce
TRUE_OF_NOTHING = ("within", "converges")
Tree = Mapping[str, Any]


def kept(sweep: Sweep) -> dict[str, Any]:
    """What is needed of a sweep to judge its claims."""
    return {
        "claims": list(sweep.claims),
        "arms": {one.name: {str(run.seed): _kept(run) for run in one.results} for one in sweep.distinct_arms},
    }


def _kept(run: Run) -> dict[str, Any]:
    curves = {name: run.curves[name] for name in KEPT if name in run.curves}
    return {
        "state": run.state,
        "num_updates": run.horizon,
        "collapse_margin": run.config["metrics.collapse_margin"],
        "curves": {
            name: [one.versions.tolist(), [float(f"{value:.{DIGITS}g}") for value in one.values.tolist()]]
            for name, one in curves.items()
        },
    }


def traces() -> dict[str, Tree]:
    """sweep -> its claims and runs."""
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def real_sweep(tree: Tree) -> Sweep:
    """The sweep as it was."""
    arms = [arm(name, [_run(int(seed), part) for seed, part in runs.items()]) for name, runs in tree["arms"].items()]
    return _swept(arms, tree["claims"])


def _run(seed: int, part: Tree) -> Run:
    return Run(
        seed=seed,
        folder=Path(f"run-s{seed}"),
        state=part["state"],
        record={"num_updates": part["num_updates"]},
        config={"metrics.collapse_margin": part["collapse_margin"]},
        curves={name: curve(dict(zip(*points, strict=True))) for name, points in part["curves"].items()},
        remarks=(),
    )


def _swept(arms: Sequence[Arm], claims: Sequence[Mapping[str, Any]]) -> Sweep:
    seeds = tuple(sorted({run.seed for one in arms for run in one.runs}))
    return Sweep(Path("toy"), "toy", "Toy", None, (), {one.name: one for one in arms}, seeds, tuple(claims))


def null_sweep(real: Sweep, random: np.random.Generator, effect: float, hero: str | None) -> Sweep:
    """No arm differs from another: seed by seed, the arms' real runs are dealt to the arms at random. So an arm's
    figures keep their spread, their seeds' common fate and their collapses, and nothing is true of any arm.

    effect: what is then added to eval/avg of the arm `hero`, for the power of the tests.
    """
    names = list(real.arms)
    dealt: dict[str, list[Run]] = {name: [] for name in names}
    for seed in real.seeds:
        hands = [next(run for run in real.arms[name].runs if run.seed == seed) for name in names]
        for name, place in zip(names, random.permutation(len(names)), strict=True):
            dealt[name].append(_shifted(hands[place], effect if name == hero else 0.0))
    claims = [_without_margin(claim) for claim in real.claims if claim["relation"] not in TRUE_OF_NOTHING]
    return _swept([arm(name, runs) for name, runs in dealt.items()], claims)


def _without_margin(claim: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of equal arms "higher by more than 1" is not open but false: contradicting it would be no mistake."""
    return dict(claim) | {"margin": 0.0} if claim["relation"] in ("greater", "less") else claim


def _shifted(run: Run, by: float) -> Run:
    scores = run.curves["eval/avg"]
    return replace(run, curves=dict(run.curves) | {"eval/avg": replace(scores, values=scores.values + by)})


if __name__ == "__main__":
    found = {sweep.name: kept(sweep) for sweep in (read_sweep(Path(folder)) for folder in sys.argv[1:])}
    FILE.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
