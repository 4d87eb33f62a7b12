"""The self-check of a process's first rollout: are the engine's weights the trainer's?

A number format explains a small difference of log-probabilities; weights that were handed over wrongly (a stale copy,
experts packed in another order, a temperature on one side only) make one that no format explains. A run that collapses
widens the gap by itself: where it goes on from a checkpoint, what it has measured before explains as much again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from minirl.config import Config, Numerics
from minirl.metrics.log_ratio import ResponseTokens
from minirl.record import RunRecord
from minirl.types import OldPolicy, RolloutBatch
from minirl.world import World

# mean |log pi_old - log mu| in nats beyond which something else than the format is at work. Measured at the first
# step: fp32 1e-6 (3e-4 on a random model where one routing flips), bf16 0.02, fp8 and fp8_weights 0.01 on a trained
# model and 0.08 on a random one, router_noise 0.13; wrongly packed experts 0.5 to 1.3.
EXPLAINED = {
    Numerics.fp32: 0.02,
    Numerics.bf16: 0.1,
    Numerics.fp8: 0.25,
    Numerics.fp8_weights: 0.25,
    Numerics.int4: 1.0,
    Numerics.router_noise: 0.5,
}
# how much wider than the gap of the rollout before it the first one of a resumed run may be: a margin for a run that
# collapses, far below the factors of 10 and more by which wrong weights widen a healthy gap
GROWTH = 3.0


class Disagreement(RuntimeError):
    """Engine and trainer are not the same policy."""


def explained(config: Config) -> float:
    """What the coarser of engine and trainer explains, nats."""
    trainer = Numerics.bf16 if config.train.compute_dtype == "bfloat16" else Numerics.fp32
    return max(EXPLAINED[config.engine.numerics], EXPLAINED[trainer])


def measured_before(metrics: Path, version: int) -> float:
    """mean |log pi_old - log mu| in nats of the run's last rollout before `version`, from its rows; 0 if there is
    none. The rows of `version` and later were moved aside when the run was resumed."""
    lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
    rows = [row for row in map(json.loads, lines) if row["version"] < version]
    gaps = [row["mismatch/logprob_abs_diff"] for row in rows if row.get("mismatch/logprob_abs_diff") is not None]
    return gaps[-1] if gaps else 0.0


def self_check(
    config: Config, record: RunRecord, version: int, world: World
) -> Callable[[RolloutBatch, OldPolicy], None]:
    """The check of a run that begins, or goes on, at `version`. Rank 0 has the rows, and writes the note."""
    (before, *_) = world.gather(measured_before(record.folder / "metrics.jsonl", version))

    def note(text: str) -> None:
        if world.rank == 0:
            print(f"note: {text}")
            record.update(notes=[*record.read().get("notes", []), text])

    return partial(refuse_disagreement, bound=explained(config), before=before, note=note, world=world)


def refuse_disagreement(
    rollouts: RolloutBatch,
    old: OldPolicy,
    *,
    bound: float,
    before: float,
    note: Callable[[str], None],
    world: World,
) -> None:
    """mean_t |log pi_old(y_t) - log mu(y_t)| over the sampled tokens of valid responses of all ranks; Disagreement
    beyond `bound`, or if no response is valid. before: what this run measured last before it was resumed, 0 for a new
    one; a gap of that order is the run's own, and is noted instead."""
    tokens = ResponseTokens.of(rollouts).positions
    gap = (old.logprobs.double() - rollouts.rollout_logprobs.double())[tokens].abs().sum()
    total = world.sum(torch.stack([gap, gap.new_tensor(len(tokens))]).to(world.device))
    if total[1] == 0:
        raise Disagreement("the engine's first responses all have log-probabilities that are not finite")
    mean = float(total[0] / total[1])
    if mean <= bound:
        return
    if mean <= GROWTH * before:
        note(
            f"resumed with a gap of {mean:.3g} nats between engine and trainer, where engine.numerics explains "
            f"{bound}; this run had {before:.3g} before it was interrupted, so the gap is its own"
        )
        return
    raise Disagreement(
        f"engine and trainer disagree about the engine's own first responses: mean |log pi_old - log mu| is "
        f"{mean:.3g} nats over {int(total[1])} tokens, engine.numerics explains at most {bound}; the engine does "
        "not hold the trainer's weights, or does not report the distribution it samples from"
    )
