"""The order of one step, the schedule and the prompts of the loop, with the objects replaced by recorders."""

from pathlib import Path

import pytest

from minirl.loop import Plan
from minirl.types import Sampling


def plan(num_mini_batches: int, num_updates: int = 16) -> Plan:
    sampling = Sampling(temperature=1.0, max_response_tokens=4, eos=1, seed=0, purpose="rollout")
    return Plan(
        num_updates=num_updates,
        num_mini_batches=num_mini_batches,
        prompts_per_mini_batch=3,
        group_size=2,
        eval_every=8,
        checkpoint_every=8,
        live_every=8,
        samples_every=8,
        histograms_every=8,
        extreme_ratio=2.0,
        min_route_overlap=0.3,
        sampling=sampling,
        checkpoints=Path("checkpoints"),
    )


@pytest.mark.parametrize("num_mini_batches", [1, 2, 4, 8])
def test_update_u_sees_the_same_prompts_for_every_n(num_mini_batches):
    made = plan(num_mini_batches)
    seen = []
    for version in range(0, made.num_updates, num_mini_batches):
        start = made.position(version)
        seen += range(start, start + made.prompts_per_batch)
    assert seen == list(range(made.num_updates * made.prompts_per_mini_batch))


def test_the_schedule_names_every_multiple_once():
    made = plan(2)
    assert [v for v in range(0, 16, 2) if made.evaluates_at(v)] == [0, 8]
    assert [v for v in range(2, 17, 2) if made.saves_at(v)] == [8, 16]
    assert plan(2, num_updates=12).saves_at(12)
