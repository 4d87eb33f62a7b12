"""Sweep folders as a real sweep writes them, from made-up dynamics: with the metric names, the rhythm and about the
noise of a toy run. For tests, and for looking at the page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

BASE: dict[str, Any] = {
    "seed": 0,
    "prompts_per_mini_batch": 16,
    "group_size": 8,
    "num_mini_batches": 8,
    "num_updates": 96,
    "algo": {
        "name": "minirl",
        "advantage": "group_mean",
        "is_weight": {
            "staleness": {"level": "token", "low": None, "high": None, "outside": "clamp"},
            "discrepancy": {"level": "token", "low": None, "high": None, "outside": "clamp"},
            "product": {"low": None, "high": 5.0, "outside": "clamp"},
        },
        "trust_region": {"kind": "ratio", "anchor": "old", "level": "token", "low": 0.2, "high": 0.27},
        "reject": {"level": "none", "low": None, "high": None, "counted": True, "groups": "all", "truncated": "keep"},
        "aggregation": {"kind": "seq_mean_token_sum", "length": None, "scale": 1.0},
        "routing": "live",
        "routing_missing": "fail",
    },
    "model": {"name": "tiny_moe", "num_layers": 3, "num_experts": 16},
    "engine": {"name": "torch", "numerics": "fp8"},
    "train": {"optim": {"lr": 8e-4, "clip": "global_norm", "max_norm": 1.0}},
    "task": {"name": "addition", "digits": 3, "options": {}},
    "eval": {"every": 8, "num_problems": 128, "num_samples": 2, "numerics": "fp32"},
    "metrics": {"live_every": 8, "collapse_margin": 4.0},
    "run": {"outputs": "outputs", "name": None, "group": "synthetic"},
}


@dataclass(frozen=True)
class Behaviour:
    """gain: what evaluation rises by · noise: seed spread of the end · collapses: after half the updates it falls ·
    k3: mismatch at the start · growth: factor on it by the end · clip: share of tokens clipped."""

    gain: float = 0.25
    noise: float = 0.02
    collapses: bool = False
    k3: float = 4e-3
    growth: float = 1.5
    clip: float = 0.03
    grad_norm: float = 4.0
    disagree: float = 0.06


ARMS: dict[str, tuple[list[str], Behaviour]] = {
    "MiniRL": ([], Behaviour()),
    "no clipping": (
        ["algo.trust_region.kind=none", "algo.trust_region.low=null", "algo.trust_region.high=null"],
        Behaviour(collapses=True, growth=8.0, clip=0.0, grad_norm=2.5),
    ),
    "R2": (["algo.routing=r2"], Behaviour(gain=0.26, k3=4.2e-3)),
    "R3": (["algo.routing=r3"], Behaviour(gain=0.31, k3=2.2e-3, growth=1.1)),
}
CLAIMS: list[dict[str, Any]] = [
    {
        "text": "without clipping, training collapses",
        "arms": ["no clipping", "MiniRL"],
        "relation": "collapsed",
    },
    {
        "text": "R3 ends above MiniRL",
        "metric": "eval/avg",
        "at": "end",
        "arms": ["R3", "MiniRL"],
        "relation": "greater",
        "margin": 0.0,
    },
    {
        "text": "R3 ends above R2, and R2 above MiniRL",
        "metric": "eval/avg",
        "at": "end",
        "arms": ["R3", "R2", "MiniRL"],
        "relation": "greater",
        "margin": 0.0,
    },
    {
        "text": "R3 halves the mismatch",
        "metric": "mismatch/kl_k3",
        "at": "area",
        "arms": ["R3", "MiniRL"],
        "relation": "ratio",
        "margin": 0.75,
    },
    {
        "text": "R2 is as good as MiniRL, to 0.05",
        "metric": "eval/avg",
        "at": "end",
        "arms": ["R2", "MiniRL"],
        "relation": "within",
        "margin": 0.05,
    },
    {
        "text": "MiniRL has the larger gradients",
        "metric": "optim/grad_norm",
        "at": "area",
        "arms": ["R3", "MiniRL"],
        "relation": "less",
        "margin": 1.0,
    },
]


def config_of(overrides: Iterable[str], seed: int, base: Mapping[str, Any] = BASE) -> dict[str, Any]:
    """BASE with overrides as typed on the command line."""
    config = json.loads(json.dumps(base))
    for override in [*overrides, f"seed={seed}"]:
        key, _, value = override.partition("=")
        place = config
        *path, last = key.split(".")
        for name in path:
            place = place[name]
        place[last] = yaml.safe_load(value)
    return config


def rows_of(config: Mapping[str, Any], behaviour: Behaviour, seed: int, arm: str) -> list[dict[str, float]]:
    """metrics.jsonl of one run. A seed's luck is shared by all arms, as prompts are."""
    random = np.random.default_rng([seed, sum(arm.encode())])
    shared = np.random.default_rng(seed)
    horizon, num = config["num_updates"], config["num_mini_batches"]
    luck = behaviour.noise * random.normal() + 0.03 * shared.normal()
    problems = config["eval"]["num_problems"] * config["eval"]["num_samples"]
    fall_at = horizon * (0.45 + 0.1 * random.random())
    rows = []
    for version in range(horizon + 1):
        time = version / horizon
        level = 0.4 + (behaviour.gain + luck) * (1 - np.exp(-3 * time)) / (1 - np.exp(-3))
        fallen = 1 / (1 + np.exp(-(version - fall_at) / 3)) if behaviour.collapses else 0.0
        level = float(np.clip(level * (1 - 0.93 * fallen), 0.01, 0.99))
        row: dict[str, float] = {"version": version}
        if version % config["eval"]["every"] == 0 or version == horizon:
            score = random.binomial(problems, level) / problems
            row |= {"eval/avg": score, "eval/se": float(np.sqrt(score * (1 - score) / problems))}
        if version == horizon:
            rows.append(row | {"time/eval": 0.2, "time/eval_cpu": 0.2})
            break
        if version % num == 0:
            row |= _rollout(random, behaviour, level, time, fallen, num, version % config["metrics"]["live_every"] == 0)
        rows.append(row | _update(random, behaviour, time, fallen, version % num, num))
    return rows


def _rollout(
    random: np.random.Generator, behaviour: Behaviour, level: float, time: float, fallen: float, num: int, live: bool
) -> dict[str, float]:
    def around(value: float, spread: float = 0.1) -> float:
        return float(value * np.exp(spread * random.normal()))

    k3 = behaviour.k3 * behaviour.growth ** (time + fallen)
    row = {
        "reward/mean": float(np.clip(level + 0.02 * random.normal(), 0, 1)),
        "reward/solved_none": around(0.1 + 0.8 * fallen),
        "reward/solved_all": around(0.2 * (1 - fallen)),
        "length/mean": around(10.2, 0.01),
        "length/truncated": around(0.01 + 0.1 * fallen),
        "entropy/mean": around(0.13 - 0.07 * time + 0.12 * fallen),
        "mismatch/kl_k3": around(k3, 0.25),
        "mismatch/kl_k1": around(k3, 0.5) * (-1 if random.random() < 0.05 else 1),
        "mismatch/logprob_abs_diff": around(k3**0.5 / 3),
        "mismatch/extreme_tokens": around(k3 / 5),
        "reject/fraction": 0.0,
        "validity/discrepancy_small": 0.9,
        "tokens/response": float(round(around(1300 * num, 0.02))),
        "tokens/prompt": 1024.0 * num,
        "time/sync": around(0.002 * num),
        "time/rollout": around(0.08 * num),
        "time/rollout_cpu": around(0.08 * num),
        "time/reward": around(0.002 * num),
        "time/old": around(0.05 * num),
    }
    if live:
        row |= {
            "routing/disagree_token_layer": around(behaviour.disagree),
            "routing/disagree_any": around(2.6 * behaviour.disagree),
            "routing/missing": 0.0,
            **{f"routing/by_layer/{layer}": 1 - around(behaviour.disagree * (1 + layer) / 4) for layer in range(3)},
            **{
                f"routing/by_position/{place}": 1 - around(behaviour.disagree * (0.3 + 0.05 * rank))
                for rank, place in enumerate(("prompt", 0, 1, 4))
            },
            "mismatch_live/kl_k3": around(4.1e-3 * behaviour.growth**time, 0.25),
            "mismatch_live/kl_k1": around(4.1e-3 * behaviour.growth**time, 0.5),
        }
    return row


def _update(
    random: np.random.Generator, behaviour: Behaviour, time: float, fallen: float, mini_batch: int, num: int
) -> dict[str, float]:
    def around(value: float, spread: float = 0.2) -> float:
        return float(value * np.exp(spread * random.normal()))

    stale = 1e-7 if mini_batch == 0 else around(1e-2 * mini_batch / num * (1 + 20 * fallen))
    moved = 0.0 if mini_batch == 0 else mini_batch / num
    norm = around(behaviour.grad_norm * (1 - 0.9 * fallen))
    row = {
        "staleness/kl_k3": stale,
        "staleness/log_ratio_mean": -stale,
        "staleness/ratio_max": 1.0 + 50 * stale,
        "is_weight/mean": around(1.0, 0.01),
        "is_weight/max": around(2.0 + fallen),
        "is_weight/capped": 0.0,
        "is_weight/ess": 0.95,
        "clip/fraction": around(behaviour.clip * moved) if behaviour.clip else 0.0,
        "clip/would_be": around(0.03 * moved + 1e-9),
        "optim/grad_norm": norm,
        "optim/clipped": float(norm > 1.0),
        "optim/lr": 8e-4,
        "validity/gap": around(0.05 + 0.1 * moved + fallen),
        "validity/small": float(np.clip(0.9 - 0.3 * moved - 0.4 * fallen, 0, 1)),
        "validity/log_ratio_p50": around(0.05 + 0.1 * moved),
        "validity/log_ratio_p95": around(0.3 + 0.4 * moved + fallen),
        "time/update": around(0.13),
        "time/update_cpu": around(0.13),
    }
    return row | ({"staleness/first": 1e-7} if mini_batch == 0 else {})


def identity_of(arm: str) -> str:
    return f"{sum(ord(letter) * 31**place for place, letter in enumerate(arm)) % 16**10:010x}"


def write_run(
    folder: Path, config: Mapping[str, Any], rows: list[dict[str, float]], arm: str, state: str, **record: Any
) -> None:
    """A run folder with the given ending."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    base = {
        "identity": folder.name.partition("-s")[0],
        "seed": config["seed"],
        "arm": arm,
        "sweep": "synthetic",
        "state": state,
        "reason": None,
        "version": rows[-1]["version"],
        "num_updates": config["num_updates"],
        "host": "laptop",
        "pid": 1,
        "started": 1764500000.0,
        "ended": 1764500030.0,
        "cpu_seconds": 26.5,
        "coldstart": {"folder": "outputs/coldstarts/0badcafe00", "content": "0badcafe00112233"},
        "packages": {"torch": "2.13.0", "transformers": "5.16.1", "numpy": "2.4.6", "minirl": "0.1.0"},
        "git": {"sha": "3c52fe9d9a6a4c1bb7e2d1f0c9d8e7f6a5b4c3d2", "dirty": False},
        "python": "3.11.9",
        "notes": [],
    }
    (folder / "run.json").write_text(json.dumps(base | record, indent=2))


def write_sweep(
    folder: Path,
    *,
    arms: Mapping[str, tuple[list[str], Behaviour]] = ARMS,
    seeds: Iterable[int] = range(5),
    claims: list[dict[str, Any]] = CLAIMS,
    base: Mapping[str, Any] = BASE,
    missing: Iterable[tuple[str, int]] = (),
    same_as: Mapping[str, str] | None = None,
    excluded: Mapping[str, str] | None = None,
    title: str = "Off-policy, N=8: does clipping matter, does replay?",
) -> Path:
    """sweep.json and the runs; `missing` cells have no folder. same_as, excluded: further arms, to their original or
    their reason."""
    cells, seeds, missing = [], list(seeds), set(missing)
    for arm, (overrides, behaviour) in arms.items():
        for seed in seeds:
            config = config_of(overrides, seed, base)
            place = folder / f"{identity_of(arm)}-s{seed}"
            cells.append(_cell(arm, seed, place, overrides))
            if (arm, seed) in missing:
                continue
            rows = rows_of(config, behaviour, seed, arm)
            write_run(place, config, rows, arm, "collapsed" if behaviour.collapses else "finished")
    for arm, original in (same_as or {}).items():
        cells += [_cell(arm, seed, folder / f"{identity_of(original)}-s{seed}", [], same_as=original) for seed in seeds]
    for arm, reason in (excluded or {}).items():
        cells += [_cell(arm, seed, folder / f"{identity_of(arm)}-s{seed}", [], excluded=reason) for seed in seeds]
    names = [*arms, *(same_as or {}), *(excluded or {})]
    folder.mkdir(parents=True, exist_ok=True)
    plan = {
        "name": folder.name,
        "title": title,
        "scale": "toy",
        "arms": {name: arms[name][0] if name in arms else [] for name in names},
        "base": ["num_mini_batches=8"],
        "seeds": seeds,
        "claims": claims,
        "cells": cells,
    }
    (folder / "sweep.json").write_text(json.dumps(plan, indent=2))
    return folder


def _cell(arm: str, seed: int, place: Path, overrides: list[str], **more: str) -> dict[str, Any]:
    cell = {"arm": arm, "seed": seed, "identity": identity_of(arm), "folder": str(place), "overrides": overrides}
    return cell | {"same_as": None, "excluded": None} | more
