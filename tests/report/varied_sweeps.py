"""Made-up sweeps that between them reach every branch of what a report says: each verdict of each relation, each number
of seeds, each ending of a run, one and several versions of the code, long curves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cold_sweep import write_cold_sweep
from synthetic_sweep import ARMS, BASE, Behaviour, config_of, identity_of, rows_of, write_sweep

Row = dict[str, Any]
END = {"metric": "eval/avg", "at": "end"}
HIGHER: Row = {"arms": ["high, long name", "low"], "relation": "greater"}


def edit(folder: Path, arm: str, seed: int, *, rows: Callable[[list[Row]], list[Row]] = list, **record: Any) -> None:
    """Changes one run of a sweep: its rows, or keys of its record."""
    run = folder / f"{identity_of(arm)}-s{seed}"
    lines = (run / "metrics.jsonl").read_text().splitlines()
    changed = rows([json.loads(line) for line in lines])
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))
    known = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(known | {"version": changed[-1]["version"]} | record))


def until(version: int) -> Callable[[list[Row]], list[Row]]:
    """A run that stopped."""
    return lambda rows: [row for row in rows if row["version"] <= version]


def scaled(metric: str, factor: float) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: [row | {metric: row[metric] * factor} if metric in row else row for row in rows]


ARMS_APART = {
    "low": ([], Behaviour(gain=0.2)),
    "near low": (["train.optim.lr=9.0e-4"], Behaviour(gain=0.2, k3=4.1e-3)),
    "high, long name": (["algo.routing=r3"], Behaviour(gain=0.4, k3=2e-3)),
    "often falls": (["train.optim.max_norm=2.0"], Behaviour(gain=0.3)),
    "falls": (["algo.aggregation.scale=2.0", "train.optim.lr=1.6e-3"], Behaviour(collapses=True, growth=8.0)),
}
RELATIONS: tuple[tuple[str, tuple[str, ...], float | None], ...] = (
    ("greater", ("high, long name", "low"), 0.0),
    ("greater", ("low", "high, long name"), 0.0),
    ("greater", ("high, long name", "low"), 0.5),
    ("greater", ("high, long name", "near low", "low"), None),
    ("less", ("low", "high, long name"), 0.0),
    ("less", ("near low", "low"), 0.0),
    ("less", ("high, long name", "low"), None),
    ("less", ("low", "high, long name"), 0.6),
    ("less", ("low", "high, long name"), -0.6),
    ("within", ("low", "near low"), 0.2),
    ("within", ("low", "near low"), 0.001),
    ("within", ("low", "high, long name"), 0.005),
    ("ratio", ("high, long name", "low"), 1.01),
    ("ratio", ("low", "high, long name"), 0.95),
    ("ratio", ("near low", "low"), 1.02),
    ("ratio", ("low", "high, long name"), 1.5),
    ("ratio", ("high, long name", "low"), 0.7),
    ("converges", ("low", "near low"), 0.3),
    ("converges", ("low", "high, long name"), 0.01),
    ("greater", ("low", "twin of low"), 0.0),
    ("greater", ("low", "dense"), 0.0),
    ("collapsed", ("falls", "low"), None),
    ("collapsed", ("low",), 0.3),
    ("collapsed", ("often falls",), None),
    ("not_collapsed", ("falls", "low"), None),
    ("not_collapsed", ("low",), 0.3),
    ("not_collapsed", ("often falls",), None),
)
K3 = {"metric": "mismatch/kl_k3", "at": "area", "arms": ["high, long name", "low"]}
FIGURES = (
    *({"text": f"at {at}", **END, "at": at, **HIGHER} for at in ("peak", "area", "update 40")),
    K3 | {"text": "R3 mismatches less", "relation": "less"},
    K3 | {"text": "nobody logs this", "relation": "less", "metric": "mismatch/nothing"},
    K3 | {"text": "log ratios fall below 0", "relation": "ratio", "metric": "staleness/log_ratio_mean"},
)


def claim(relation: str, arms: tuple[str, ...], margin: float | None) -> Row:
    where = {} if "collapsed" in relation else END
    given = {} if margin is None else {"margin": margin}
    return {"text": f"{' '.join(arms)} {relation} {margin}", "arms": list(arms), "relation": relation, **where, **given}


def relations(folder: Path) -> Path:
    """Five arms, five seeds, every relation in both directions and with and without margin; one arm that collapses
    in three seeds, one that sampled fewer tokens."""
    claims = [*(claim(*words) for words in RELATIONS), *FIGURES]
    write_sweep(
        folder, arms=ARMS_APART, claims=claims, same_as={"twin of low": "low"}, excluded={"dense": "no experts"}
    )
    fall = Behaviour(gain=0.3, collapses=True)
    for seed in range(5):
        edit(folder, "high, long name", seed, rows=scaled("tokens/response", 0.8))
        if seed < 3:
            fallen = rows_of(config_of([], seed), fall, seed, "often falls")
            edit(folder, "often falls", seed, rows=lambda rows, fallen=fallen: fallen)  # type: ignore[misc]
    return folder


def counts(folder: Path) -> Path:
    """Claims of collapse alone, few enough for five seeds against none."""
    arms = {name: ARMS[name] for name in ("MiniRL", "no clipping")}
    pairs = [(word, names) for word in ("collapsed", "not_collapsed") for names in (list(arms), list(arms)[::-1])]
    claims = [{"text": f"{names[0]} {word}", "arms": names, "relation": word} for word, names in pairs]
    return write_sweep(folder, arms=arms, claims=claims)


def few_clear(folder: Path) -> Path:
    """A claim that is clear by itself and not among the others, undecided ones, and two that nobody will decide."""
    arms = {name: (words, Behaviour(gain=0.25, noise=0.03)) for name, (words, _) in ARMS.items()}
    names = list(arms)
    pairs = [(a, b) for a in names for b in names if a != b]
    claims = [{"text": f"{a} above {b}", "arms": [a, b], "relation": "greater", **END} for a, b in pairs]
    return write_sweep(folder, arms=arms, claims=claims)


def seeds(number: int) -> Callable[[Path], Path]:
    claims = [
        {"text": "R3 is above", "arms": ["R3", "MiniRL"], "relation": "greater", **END},
        {"text": "R3 is above R2", "arms": ["R3", "R2", "MiniRL"], "relation": "greater", **END},
        {"text": "R2 is near", "arms": ["R2", "MiniRL"], "relation": "within", "margin": 0.1, **END},
        {"text": "R3 is more", "arms": ["R3", "MiniRL"], "relation": "ratio", "margin": 1.1, **END},
        {"text": "they meet", "arms": ["R3", "MiniRL"], "relation": "converges", "margin": 0.1, **END},
        {"text": "it falls", "arms": ["no clipping", "MiniRL"], "relation": "collapsed"},
        {"text": "it always falls", "arms": ["no clipping"], "relation": "collapsed", "margin": 0.9},
    ]
    return lambda folder: write_sweep(folder, seeds=range(number), claims=claims)


def unpaired(folder: Path) -> Path:
    """Two arms that share no seed, and one that shares one with each."""
    claims = [
        {"text": "by Welch", "arms": ["R3", "MiniRL"], "relation": "greater", **END},
        {"text": "one pair", "arms": ["R2", "MiniRL"], "relation": "greater", **END},
        {"text": "no spread", "arms": ["R3", "MiniRL"], "relation": "converges", "margin": 0.1, **END},
    ]
    absent = [("MiniRL", seed) for seed in range(5, 10)] + [("R3", seed) for seed in range(5)]
    absent += [("R2", seed) for seed in range(1, 9)]
    return write_sweep(folder, seeds=range(10), claims=claims, missing=absent)


def endings(folder: Path) -> Path:
    """Runs that stopped, in every state; several versions of the code, one of them in the middle of a run, packages
    that differ, a longer plan in one arm, a seed with another configuration."""
    write_sweep(folder, arms=ARMS | {"longer": (["num_updates=112"], Behaviour())}, missing=[("R2", 4)])
    edit(folder, "no clipping", 0, rows=until(64), state="collapsed", reason="collapsed at update 56")
    edit(folder, "no clipping", 1, rows=until(50), state="diverged", reason="loss is nan at update 51")
    edit(folder, "no clipping", 2, rows=until(7), state="degenerate", reason="all rejected")
    edit(folder, "R2", 0, rows=until(33), state="failed", reason="out of memory")
    edit(folder, "R2", 1, rows=until(70), state="interrupted")
    edit(folder, "R2", 2, rows=until(20), state="running")
    edit(folder, "R3", 0, codes=["3c52fe9d", "0123abcd+77aa"], horizons=[96, 96])
    edit(folder, "R3", 1, codes=["0123abcd+77aa"], packages={"torch": "2.14.0", "minirl": "0.1.0"})
    edit(folder, "R3", 2, git=None, packages={"torch": "2.13.0", "minirl": "0.2.0"})
    config = folder / f"{identity_of('R3')}-s3" / "config.yaml"
    config.write_text(config.read_text().replace("lr: 0.0008", "lr: 0.0004"))
    return folder


def long(folder: Path) -> Path:
    """Curves with more points than are drawn."""
    arms = {name: ARMS[name] for name in ("MiniRL", "R3")}
    base = {**BASE, "num_mini_batches": 1, "num_updates": 320}
    return write_sweep(folder, arms=arms, seeds=range(3), claims=[], base=base)


def another_magnitude(folder: Path) -> Path:
    arms = {"fp8": ([], Behaviour()), "fp32": (["engine.numerics=fp32"], Behaviour(k3=1e-13))}
    return write_sweep(folder, arms=arms, seeds=range(3), claims=[])


def not_begun(folder: Path) -> Path:
    return write_sweep(folder, seeds=range(2), missing=[(arm, seed) for arm in ARMS for seed in range(2)])


def cold(folder: Path) -> Path:
    """Three cold starts; the claim that they converge is one of three."""
    write_cold_sweep(folder, margin=0.05)
    plan = json.loads((folder / "sweep.json").read_text())
    names = list(plan["arms"])
    for pair in (names[:2], names[1:]):
        plan["claims"].append({"text": " above ".join(pair), "arms": pair, "relation": "greater", **END})
    (folder / "sweep.json").write_text(json.dumps(plan))
    return folder


SWEEPS: dict[str, Callable[[Path], Path]] = {
    "relations": relations,
    "counts": counts,
    "few_clear": few_clear,
    "one_seed": seeds(1),
    "two_seeds": seeds(2),
    "four_seeds": seeds(4),
    "unpaired": unpaired,
    "endings": endings,
    "long": long,
    "another_magnitude": another_magnitude,
    "not_begun": not_begun,
    "cold": cold,
    "cold_and_near": lambda folder: write_cold_sweep(folder, margin=0.3),
}
