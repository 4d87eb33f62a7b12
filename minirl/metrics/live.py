"""The same tokens under free routing: what can be compared between arms that replay routes and arms that do not."""

from __future__ import annotations

from minirl.metrics import mismatch
from minirl.metrics.routing import ROUTING, compared
from minirl.metrics.statistics import Family
from minirl.types import OldPolicy, Statistics, TrainBatch

MISMATCH_LIVE = Family("mismatch_live/", mismatch.ESTIMATORS)
FAMILIES = (MISMATCH_LIVE, ROUTING)


def live_metrics(batch: TrainBatch, live: OldPolicy, *, extreme_ratio: float) -> Statistics:
    """This rank's part. live: pi_old recomputed with routers that choose for themselves."""
    rollouts = batch.rollouts
    seen = mismatch.Mismatch.of(rollouts, batch.rewards, live, extreme_ratio=extreme_ratio)
    choices = None if live.routes is None else compared(rollouts, live.routes)
    return {**MISMATCH_LIVE.measure(seen), **({} if choices is None else ROUTING.measure(choices))}
