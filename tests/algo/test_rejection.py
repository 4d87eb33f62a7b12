"""What the data rejects, what stays counted, and that nothing rejected can spoil what is left."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from algo_cases import METHODS, algorithm, draw, gradient, pack, prepared, spread
from torch import Tensor

from minirl.types import OldPolicy, Routes, TrainBatch

# log(pi_old / mu) of five responses in groups of two and three... of lengths 2, 1, 2, 1
LOG_DISCREPANCY = torch.tensor([1.0, -1.0, 0.5, 2.0, 2.0, -3.0], dtype=torch.float64)
LENGTHS = [2, 1, 2, 1]


def crafted(**flags: Tensor) -> TrainBatch:
    mu = torch.full((6,), -3.5, dtype=torch.float64)
    rewards = torch.tensor([0.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    return pack(LENGTHS, rollout_logprobs=mu, old_logprobs=mu + LOG_DISCREPANCY, rewards=rewards, group_size=2, **flags)


def masks(batch: TrainBatch, *overrides: str) -> tuple[list[int], list[int]]:
    """(accepted, counted) of the response tokens."""
    done = algorithm("minirl", *overrides).reject(batch)
    assert not (done.accepted | done.counted)[~batch.rollouts.response_mask].any()
    return done.accepted[batch.rollouts.response_mask].int().tolist(), done.counted[
        batch.rollouts.response_mask
    ].int().tolist()


ALL = [1] * 6


def test_nothing_is_rejected_by_default() -> None:
    assert masks(crafted(truncated=torch.ones(4, dtype=torch.bool))) == (ALL, ALL)


@pytest.mark.parametrize(
    ("level", "low", "high", "kept"),
    [
        ("token", "null", 2.0, [0, 1, 1, 0, 0, 1]),
        ("token", 0.4, 2.0, [0, 0, 1, 0, 0, 0]),
        ("sequence", "null", 2.0, [1, 1, 1, 0, 0, 1]),  # products e^0, e^0.5, e^4, e^-3
        ("sequence", 0.1, "null", [1, 1, 1, 1, 1, 0]),
        ("geometric", "null", 8.0, ALL),  # means e^0, e^0.5, e^2 = 7.4, e^-3
        ("geometric", 0.9, 1.1, [1, 1, 0, 0, 0, 0]),
    ],
)
@pytest.mark.parametrize("counted", [True, False])
def test_ratio_rejection_by_hand(level: str, low: object, high: object, kept: list[int], counted: bool) -> None:
    keys = {"level": level, "low": low, "high": high, "counted": str(counted).lower()}
    found = masks(crafted(), *(f"algo.reject.{key}={value}" for key, value in keys.items()))
    assert found == (kept, ALL if counted else kept)


def test_a_quarter_rejected_reads_a_quarter() -> None:
    """Denominator: response tokens before rejection."""
    mu = torch.full((8,), -1.0)
    old = mu + torch.tensor([1.0, 1.0, 0, 0, 0, 0, 0, 0])
    batch = pack([4, 4], rollout_logprobs=mu, old_logprobs=old, rewards=torch.tensor([0.0, 1.0]), group_size=2)
    done = algorithm("minirl", "algo.reject.level=token", "algo.reject.high=2", "algo.reject.counted=false").reject(
        batch
    )
    mask = done.rollouts.response_mask
    assert 1 - float(done.accepted[mask].double().mean()) == 0.25


@pytest.mark.parametrize("counted", ["true", "false"])
def test_uniform_groups_and_truncated_responses(counted: str) -> None:
    """Responses 2 and 3 form a group with equal rewards; response 1 was cut off."""
    batch = crafted(truncated=torch.tensor([False, True, False, False]))
    for keys, kept in (
        (["algo.reject.groups=mixed"], [1, 1, 1, 0, 0, 0]),
        (["algo.reject.truncated=drop"], [1, 1, 0, 1, 1, 1]),
        (["algo.reject.groups=mixed", "algo.reject.truncated=drop"], [1, 1, 0, 0, 0, 0]),
    ):
        found = masks(batch, *keys, f"algo.reject.counted={counted}")
        assert found == (kept, ALL if counted == "true" else kept)


def test_truncated_responses_leave_the_normaliser() -> None:
    """Not counted: the token mean is over what is left."""
    batch = crafted(truncated=torch.tensor([False, True, False, False]))
    algo = algorithm("dapo", "algo.reject.groups=all", "algo.reject.truncated=drop")
    assert algo.counts(algo.reject(batch)).tolist() == [3, 5, 2]
    coefficients = prepared(algo, batch).coefficients
    assert coefficients is not None
    assert coefficients[batch.rollouts.response_mask].tolist() == pytest.approx([1 / 5, 1 / 5, 0, 1 / 5, 1 / 5, 1 / 5])


def test_an_invalid_response_changes_nothing_for_the_others() -> None:
    """One NaN of the engine, stored as 0: rejected, still counted, whatever the method and its bounds."""
    theta_noise = torch.linspace(-0.3, 0.3, 6, dtype=torch.float64)
    whole = crafted()
    theta = spread(whole.old.logprobs[whole.rollouts.response_mask] + theta_noise, whole.rollouts.response_mask)
    for name in METHODS:
        algo = algorithm(name)
        if name == "geo_rs":  # its narrow default band keeps next to nothing of so few responses
            algo = algorithm(name, "algo.reject.low=0.9", "algo.reject.high=2")
        broken_mu = whole.rollouts.rollout_logprobs.clone()
        broken_mu[whole.rollouts.sequence_ids == 0] = 0.0
        valid = torch.tensor([False, True, True, True])
        broken = replace(whole, rollouts=replace(whole.rollouts, rollout_logprobs=broken_mu, valid=valid))
        expected, found = prepared(algo, whole), prepared(algo, broken)
        others = whole.rollouts.response_mask & (whole.rollouts.sequence_ids != 0)
        assert not found.accepted[~others].any()
        assert torch.equal(found.counted, expected.counted)
        left, right = gradient(algo, expected, theta)[0], gradient(algo, found, theta)[0]
        assert torch.equal(left[others], right[others])
        assert right.isfinite().all() and not right[~others].any()


EVERYTHING_GOES = {
    "token band": ["algo.reject.level=token", "algo.reject.high=0.01"],
    "sequence band": ["algo.reject.level=sequence", "algo.reject.low=1000"],
    "truncated": ["algo.reject.truncated=drop"],
}


@pytest.mark.parametrize("rule", EVERYTHING_GOES)
@pytest.mark.parametrize("counted", ["true", "false"])
@pytest.mark.parametrize("kind", ["seq_mean_token_sum", "seq_mean_token_mean", "token_mean", "group_token_mean"])
def test_a_wholly_rejected_batch_has_loss_zero(rule: str, counted: str, kind: str) -> None:
    batch = crafted(truncated=torch.ones(4, dtype=torch.bool))
    keys = [*EVERYTHING_GOES[rule], f"algo.reject.counted={counted}", f"algo.aggregation.kind={kind}"]
    algo = algorithm("minirl", *keys)
    found, terms = gradient(algo, prepared(algo, batch), batch.old.logprobs)
    assert terms.loss.item() == 0.0
    assert not found.any()


def test_rejection_never_sees_pi_theta() -> None:
    """Masks and coefficients are the same before and after updates: they have no logprobs to look at."""
    for name in METHODS:
        sample, algo = draw(8), algorithm(name)
        batch = prepared(algo, sample.batch)
        for shift in (0.0, 0.5):
            terms = algo.loss(sample.logprobs() - shift * sample.batch.rollouts.response_mask, batch, False)
            assert not terms.kept[~batch.rollouts.response_mask].any()
            assert not terms.is_weight[~batch.rollouts.response_mask].any()


# --- routes -------------------------------------------------------------------------------------------------------

# responses of 2, 1, 2, 1 tokens after prompts of 2: sequences of 4, 3, 4, 3 tokens
NUM_TOKENS = 14
LAST = [3, 6, 10, 13]


def routed(*missing: int) -> TrainBatch:
    present = torch.ones(NUM_TOKENS, dtype=torch.bool)
    present[list(missing)] = False
    return crafted(prompt_lengths=[2, 2, 2, 2], present=present)


@pytest.mark.parametrize("policy", ["fail", "live", "drop"])
def test_the_last_token_needs_no_route(policy: str) -> None:
    """It is never an input: an engine gives T - 1 rows."""
    assert masks(routed(*LAST), "algo.routing=r3", f"algo.routing_missing={policy}") == (ALL, ALL)


def test_a_missing_route_is_an_error_by_default() -> None:
    """It names the first one: the second token of the third response's sequence, which begins at 7."""
    found = r"token 1 of response 2 has no route .*algo.routing_missing=fail \(2 of 14 tokens are like it\)"
    with pytest.raises(ValueError, match=found):
        masks(routed(8, 12), "algo.routing=r3")


def test_an_invalid_response_needs_no_route() -> None:
    """It teaches nothing whatever its routes are, so its holes stop no run; those of the others do."""
    batch = routed(0, 1, 8)
    spoilt = replace(batch, rollouts=replace(batch.rollouts, valid=torch.tensor([False, True, False, True])))
    assert masks(spoilt, "algo.routing=r3") == ([0, 0, 1, 0, 0, 1], ALL)
    partly = replace(batch, rollouts=replace(batch.rollouts, valid=torch.tensor([False, True, True, True])))
    with pytest.raises(ValueError, match="token 1 of response 2 has no route"):
        masks(partly, "algo.routing=r3")


@pytest.mark.parametrize(
    ("missing", "kept"),
    [
        ([0], [0, 0, 1, 1, 1, 1]),  # a prompt token: everything after it is scored from an unreplayed state
        ([2], [1, 0, 1, 1, 1, 1]),  # the first response token still is scored from replayed ones
        ([5], [1, 1, 0, 1, 1, 1]),
        ([8, 12], [1, 1, 1, 0, 0, 0]),
        ([2, 13], [1, 0, 1, 1, 1, 1]),
    ],
)
def test_drop_leaves_out_what_follows_a_hole(missing: list[int], kept: list[int]) -> None:
    """Dropped tokens stay counted, so the loss of the others does not change."""
    assert masks(routed(*missing), "algo.routing=r3", "algo.routing_missing=drop") == (kept, ALL)


def test_live_keeps_what_has_no_route() -> None:
    assert masks(routed(0, 8), "algo.routing=r3", "algo.routing_missing=live") == (ALL, ALL)


def test_each_replay_asks_for_its_own_routes() -> None:
    """r2 replays the trainer's record, r3 the engine's; live asks for none."""
    batch = routed(0)
    complete = Routes(torch.zeros(NUM_TOKENS, 1, 2), torch.ones(NUM_TOKENS, dtype=torch.bool), (0,), 4)
    batch = replace(batch, old=OldPolicy(batch.old.logprobs, batch.old.entropy, complete))
    assert masks(batch, "algo.routing=r2", "algo.routing_missing=drop") == (ALL, ALL)
    assert masks(batch, "algo.routing=live", "algo.routing_missing=drop") == (ALL, ALL)
    assert masks(batch, "algo.routing=r3", "algo.routing_missing=drop")[0] == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("routing", ["r2", "r3"])
@pytest.mark.parametrize("policy", ["fail", "drop"])
def test_replay_without_any_routes_is_an_error(routing: str, policy: str) -> None:
    with pytest.raises(ValueError, match=f"algo.routing={routing}"):
        masks(crafted(), f"algo.routing={routing}", f"algo.routing_missing={policy}")


def test_geometric_rejection_at_the_gap_of_the_paper() -> None:
    """3.5e-3 nats per token: the mean log ratio is far outside log 1.001, every response goes."""
    mu = torch.full((40,), -1.0, dtype=torch.float64)
    batch = pack(
        [10] * 4, rollout_logprobs=mu, old_logprobs=mu - 3.5e-3, rewards=torch.tensor([0.0, 1, 0, 1]), group_size=4
    )
    assert math.exp(-3.5e-3) < 0.999
    assert not algorithm("geo_rs").reject(batch).accepted.any()
