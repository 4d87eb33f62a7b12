"""What the verifier said of a rollout batch."""

from __future__ import annotations

from torch import Tensor

from minirl.metrics.statistics import Estimators, Mean, Moments, Sum
from minirl.types import Rewards, TrainBatch


def correct(rewards: Rewards) -> Tensor:
    """[B] bool: graded, and with full marks (a reward of at least 1, as for pass@k). Partial credit is not correct."""
    return rewards.graded & (rewards.values >= 1)


def mean(batch: TrainBatch) -> Mean:
    """mean over graded responses of R(x, y). The responses are mu_old's, so this is mu's reward, not pi's.
    [arXiv 2512.01374 §2.1]"""
    return Mean.of(batch.rewards.values[batch.rewards.graded])


def std(batch: TrainBatch) -> Moments:
    """standard deviation of R(x, y) over all graded responses.
    [ours]"""
    return Moments.of(batch.rewards.values[batch.rewards.graded])


def solved_none(batch: TrainBatch) -> Mean:
    """share of groups without a correct response, of the groups with any graded one: these teach nothing.
    [arXiv 2503.14476]"""
    graded, right = _by_group(batch)
    return Mean.of(~right[graded.any(1)].any(1))


def solved_all(batch: TrainBatch) -> Mean:
    """share of groups whose graded responses are all correct, of the groups with any: these teach nothing.
    [arXiv 2503.14476]"""
    graded, right = _by_group(batch)
    return Mean.of((right | ~graded)[graded.any(1)].all(1))


def verifier_errors(batch: TrainBatch) -> Sum:
    """number of responses on which the verifier itself failed: no reward, neither right nor wrong.
    [ours]"""
    return Sum.of(~batch.rewards.graded)


def advantage_abs(batch: TrainBatch) -> Mean:
    """mean over responses of |A|: 0 means that the batch gives no gradient. (The loss itself is 0 at ratio 1 with
    centred advantages, and says nothing.)
    [ours]"""
    return Mean.of(batch.advantages.abs())


def _by_group(batch: TrainBatch) -> tuple[Tensor, Tensor]:
    """[groups, group_size] graded and correct."""
    shape = (-1, batch.rollouts.group_size)
    return batch.rewards.graded.view(shape), correct(batch.rewards).view(shape)


ESTIMATORS: Estimators[TrainBatch] = {
    "mean": mean,
    "std": std,
    "solved_none": solved_none,
    "solved_all": solved_all,
    "verifier_errors": verifier_errors,
    "advantage_abs": advantage_abs,
}
