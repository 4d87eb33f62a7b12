"""All figures of one rollout batch, before the first update on it."""

from __future__ import annotations

from minirl.metrics import counts, length, mismatch, reward, validity
from minirl.metrics.routing import LOCAL, compared
from minirl.metrics.statistics import Family
from minirl.types import Statistics, TrainBatch

REWARD = Family("reward/", reward.ESTIMATORS)
LENGTH = Family("length/", length.ESTIMATORS)
TOKENS = Family("tokens/", counts.TOKENS)
ROLLOUT = Family("rollout/", counts.ROLLOUT)
REJECT = Family("reject/", counts.REJECT)
ENTROPY = Family("entropy/", counts.ENTROPY)
MISMATCH = Family("mismatch/", mismatch.ESTIMATORS)
DISCREPANCY = Family("validity/discrepancy_", validity.ESTIMATORS)
FAMILIES = (REWARD, LENGTH, TOKENS, ROLLOUT, REJECT, ENTROPY, MISMATCH, DISCREPANCY, LOCAL)


def rollout_metrics(batch: TrainBatch, *, extreme_ratio: float) -> Statistics:
    """This rank's part of the batch. Mismatch, entropy and validity are those of the recompute pass, with the arm's
    own routing, on all response tokens of valid responses, rejected or not."""
    rollouts, old = batch.rollouts, batch.old
    seen = mismatch.Mismatch.of(rollouts, batch.rewards, old, extreme_ratio=extreme_ratio)
    figures = {
        **REWARD.measure(batch),
        **LENGTH.measure(rollouts),
        **TOKENS.measure(rollouts),
        **ROLLOUT.measure(rollouts),
        **REJECT.measure(batch),
        **ENTROPY.measure(batch),
        **MISMATCH.measure(seen),
        **DISCREPANCY.measure(seen.log_ratio),
    }
    choices = None if old.routes is None else compared(rollouts, old.routes)
    return figures if choices is None else figures | LOCAL.measure(choices)
