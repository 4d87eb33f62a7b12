"""How far the trainer stands from the sampler with the same weights: pi_old against mu_old.

d_t = log pi_old(y_t) - log mu_old(y_t), and m = the mean over the response tokens of valid responses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from minirl.metrics.log_ratio import CLAMP, LogRatio, ResponseTokens
from minirl.metrics.reward import correct
from minirl.metrics.statistics import Estimators, Histogram, Max, Mean, Min
from minirl.types import OldPolicy, Rewards, RolloutBatch


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Both policies' float64 logprobs [n] of the sampled tokens; per response [b] whether it was right or wrong.

    extreme_ratio: tau, the ratio beyond which a token counts as extreme.
    """

    trainer: Tensor
    sampler: Tensor
    tokens: ResponseTokens
    correct: Tensor
    failed: Tensor
    extreme_ratio: float

    @classmethod
    def of(cls, rollouts: RolloutBatch, rewards: Rewards, trainer: OldPolicy, *, extreme_ratio: float) -> Self:
        tokens = ResponseTokens.of(rollouts)
        right = correct(rewards)
        return cls(
            trainer=trainer.logprobs.double()[tokens.positions],
            sampler=rollouts.rollout_logprobs.double()[tokens.positions],
            tokens=tokens,
            correct=right[tokens.responses],
            failed=(rewards.graded & ~right)[tokens.responses],
            extreme_ratio=extreme_ratio,
        )

    @property
    def log_ratio(self) -> LogRatio:
        """d = log pi_old - log mu_old."""
        return LogRatio(self.trainer - self.sampler, self.tokens)


def kl_k1(seen: Mismatch) -> Mean:
    """m(-d_t), nats per token: estimates KL(mu_old || pi_old) without bias; may be negative on a batch.
    [arXiv 2512.01374 §4.2]"""
    return Mean.of(-seen.log_ratio.values)


def kl_k3(seen: Mismatch) -> Mean:
    """m(exp(d_t) - 1 - d_t), nats per token: estimates KL(mu_old || pi_old), never negative, less noisy than k1.
    [Schulman, "Approximating KL divergence"; arXiv 2510.11370]"""
    return Mean.of(seen.log_ratio.ratio_minus_one - seen.log_ratio.values)


def logprob_abs_diff(seen: Mismatch) -> Histogram:
    """|d_t|, nats: mean, quantiles and maximum over tokens.
    [AReaL, R3 notes]"""
    return Histogram.of(seen.log_ratio.values.abs(), quantiles=(0.95, 0.99))


def extreme_tokens(seen: Mismatch) -> Mean:
    """F(tau) = m(1[max(rho_t, 1 / rho_t) > tau]), rho = exp(d), tau = metrics.extreme_ratio: share of tokens.
    [arXiv 2510.11370]"""
    tau = seen.trainer.new_tensor(seen.extreme_ratio)
    return Mean.of(seen.log_ratio.values.abs() > tau.log())


def prob_diff_mean(seen: Mismatch) -> Mean:
    """mean over responses of mean_t |pi_old(y_t) - mu_old(y_t)|.
    [TIS blog, Yao et al.]"""
    return Mean.of(seen.tokens.means((seen.trainer.exp() - seen.sampler.exp()).abs()))


def prob_diff_max(seen: Mismatch) -> Mean:
    """mean over responses of max_t |pi_old(y_t) - mu_old(y_t)|; grows with the length of responses.
    [TIS blog, Yao et al.]"""
    return Mean.of(seen.tokens.maxima((seen.trainer.exp() - seen.sampler.exp()).abs()))


def ppl_trainer(seen: Mismatch) -> Mean:
    """mean over responses of exp(-mean_t log pi_old(y_t)).
    [MIS blog, Liu, Li et al.]"""
    return Mean.of((-seen.tokens.means(seen.trainer)).clamp(max=CLAMP).exp())


def ppl_sampler(seen: Mismatch) -> Mean:
    """mean over responses of exp(-mean_t log mu_old(y_t)).
    [MIS blog, Liu, Li et al.]"""
    return Mean.of((-seen.tokens.means(seen.sampler)).clamp(max=CLAMP).exp())


def ppl_ratio(seen: Mismatch) -> Mean:
    """mean over responses of exp(mean_t(-d_t)): above 1, the trainer is the less confident one.
    [verl, rollout correction]"""
    return Mean.of((-seen.tokens.means(seen.log_ratio.values)).clamp(-CLAMP, CLAMP).exp())


def log_ppl_diff(seen: Mismatch) -> Mean:
    """mean over responses of mean_t(-d_t), nats: k1 with every response weighing the same.
    [verl, rollout correction]"""
    return Mean.of(-seen.tokens.means(seen.log_ratio.values))


def log_ppl_abs_diff(seen: Mismatch) -> Mean:
    """mean over responses of |mean_t d_t|, nats.
    [verl, rollout correction]"""
    return Mean.of(seen.tokens.means(seen.log_ratio.values).abs())


def log_ppl_diff_max(seen: Mismatch) -> Max:
    """max over responses of mean_t(-d_t), nats.
    [verl, rollout correction]"""
    return Max.of(-seen.tokens.means(seen.log_ratio.values))


def log_ppl_diff_min(seen: Mismatch) -> Min:
    """min over responses of mean_t(-d_t), nats.
    [verl, rollout correction]"""
    return Min.of(-seen.tokens.means(seen.log_ratio.values))


def chi2(seen: Mismatch) -> Mean:
    """m(rho_t^2) - 1 with |d_t| clamped to 20: estimates the chi-square divergence per token.
    [verl, rollout correction]"""
    excess = seen.log_ratio.ratio_minus_one
    return Mean.of(excess * (excess + 2))  # rho^2 - 1 = (rho - 1)(rho + 1), exact near rho = 1


def chi2_seq(seen: Mismatch) -> Mean:
    """mean over responses of exp(2 S) - 1, S = sum_t d_t, with 2 S clamped to +-20.
    [verl, rollout correction]"""
    return Mean.of((2 * seen.log_ratio.sums).clamp(-CLAMP, CLAMP).expm1())


def seq_log_ratio_correct(seen: Mismatch) -> Mean:
    """mean over correct responses of sum_t d_t, nats: about 0 in health; falls when what mu gets right becomes
    unlikely under pi, some updates before the reward does.
    [ours, measured on toy models]"""
    return Mean.of(seen.log_ratio.sums[seen.correct])


def seq_log_ratio_failed(seen: Mismatch) -> Mean:
    """mean over failed responses of sum_t d_t, nats: falls in healthy runs too.
    [ours, measured on toy models]"""
    return Mean.of(seen.log_ratio.sums[seen.failed])


ESTIMATORS: Estimators[Mismatch] = {
    "kl_k1": kl_k1,
    "kl_k3": kl_k3,
    "logprob_abs_diff": logprob_abs_diff,
    "extreme_tokens": extreme_tokens,
    "prob_diff_mean": prob_diff_mean,
    "prob_diff_max": prob_diff_max,
    "ppl_trainer": ppl_trainer,
    "ppl_sampler": ppl_sampler,
    "ppl_ratio": ppl_ratio,
    "log_ppl_diff": log_ppl_diff,
    "log_ppl_abs_diff": log_ppl_abs_diff,
    "log_ppl_diff_max": log_ppl_diff_max,
    "log_ppl_diff_min": log_ppl_diff_min,
    "chi2": chi2,
    "chi2_seq": chi2_seq,
    "seq_log_ratio_correct": seq_log_ratio_correct,
    "seq_log_ratio_failed": seq_log_ratio_failed,
}
