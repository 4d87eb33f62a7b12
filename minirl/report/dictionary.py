"""What other stacks call our metrics: the one table behind imported logs and docs/metric_dictionary.md.

Every name and sign was read in the files that `stacks.py` gives for its stack, in the version given there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Name:
    """One stack's name; `*` stands for any part of it, and several matches are averaged. factor: theirs times factor is
    ours; -1 turns the sign. caveat: where theirs is not quite ours; "" is the same. aliases: other names of the same
    figure, by version or logger · but: parts that a name must not
    have."""

    name: str
    factor: float = 1.0
    caveat: str = ""
    aliases: tuple[str, ...] = ()
    but: tuple[str, ...] = ()

    def matches(self, found: str) -> bool:
        patterns = (re.escape(name).replace(r"\*", r"[^/]+") for name in (self.name, *self.aliases))
        return any(re.fullmatch(one, found) for one in patterns) and not any(part in found for part in self.but)


@dataclass(frozen=True, slots=True)
class Entry:
    """One of our metrics. healthy: values seen in runs that were well, and by whom."""

    ours: str
    meaning: str
    healthy: str
    theirs: Mapping[str, Name]


DISCREPANCY_ONLY = "pi_old / mu only; ours is the whole weight, the same at N=1"
TOKENS_OF_MEAN = "over processes, each a mean of its own tokens"
PER_RESPONSE = "mean over responses of their token means, unless calculate_per_token_loss"

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "reward/mean",
        "mean reward of the responses",
        "rises; alike in runs that end differently (2512.01374, Fig. 1)",
        {
            "verl": Name("critic/score/mean"),
            "prime-rl": Name("reward/all/mean", aliases=("reward/mean",)),
            "nemo-rl": Name("train/reward"),
            "slime": Name("rollout/raw_reward"),
            "trl": Name("reward", caveat="weighted sum of the reward functions", aliases=("train/reward",)),
            "skyrl": Name("reward/avg_raw_reward"),
        },
    ),
    Entry(
        "eval/avg",
        "share of held-out problems solved",
        "stays within 0.03 of its peak (2512.01374, read off its figures)",
        {
            "verl": Name("val-core/*/*/mean@*", caveat="mean over data sources"),
            "prime-rl": Name("eval/*/avg@*", caveat="mean over environments"),
            "nemo-rl": Name("validation/accuracy"),
            "slime": Name("eval/*", caveat="mean reward, over data sets", but=("/step", "-truncated_ratio", "-pass@")),
            "trl": Name("eval_reward", caveat="mean reward", aliases=("eval/reward",)),
            "skyrl": Name("eval/all/avg_score", caveat="mean reward"),
        },
    ),
    Entry(
        "length/mean",
        "response tokens",
        "no jump; abnormal lengths come with mismatch (TIS blog)",
        {
            "verl": Name("response_length/mean"),
            "prime-rl": Name("decode_len/all/mean", caveat="mean over problems first"),
            "nemo-rl": Name("train/mean_gen_tokens_per_sample"),
            "slime": Name("rollout/response_len/mean"),
            "trl": Name("completions/mean_length", aliases=("train/completions/mean_length",)),
            "skyrl": Name("generate/avg_num_tokens"),
        },
    ),
    Entry(
        "length/truncated",
        "share of responses cut at the limit",
        "low and not rising",
        {
            "verl": Name("response_length/clip_ratio", caveat="as long as the limit, whether cut or not"),
            "prime-rl": Name("is_truncated/all/mean", aliases=("is_truncated/mean",)),
            "nemo-rl": Name("train/truncation_rate"),
            "slime": Name("rollout/truncated_ratio"),
            "trl": Name("completions/clipped_ratio", aliases=("train/completions/clipped_ratio",)),
        },
    ),
    Entry(
        "length/repetition",
        "repetition in responses",
        "near 0",
        {"slime": Name("rollout/repetition_frac", caveat="share of responses that compress well; ours counts 4-grams")},
    ),
    Entry(
        "entropy/mean",
        "nats per token over the whole vocabulary, of pi_old on mu's prefixes",
        "within 0.5 and 1.5 times its early level; a crash and a rise are both trouble (2512.01374)",
        {
            "verl": Name("actor/entropy", caveat="aggregated by loss_agg_mode; the same with token-mean"),
            "prime-rl": Name("entropy/mean", caveat="of pi_theta, in the update pass"),
            "nemo-rl": Name("train/approx_entropy", caveat="estimated from the sampled tokens, of pi_theta"),
            "slime": Name("train/entropy_loss", caveat=f"of pi_theta; {PER_RESPONSE}"),
            "trl": Name("entropy", caveat="of pi_theta", aliases=("train/entropy",)),
            "skyrl": Name("policy/policy_entropy", caveat="of pi_theta"),
        },
    ),
    Entry(
        "mismatch/kl_k1",
        "mean of log mu - log pi_old: estimates KL(mu || pi_old), may be negative on a batch",
        "FP8 rollouts of a 30B MoE: 3.5e-3 at the start, 1e-2 is trouble without replay (2512.01374, read off)",
        {
            "verl": Name("rollout_corr/kl"),
            "slime": Name("train/mis_kl", caveat=f"{PER_RESPONSE}; needs its mismatch helper"),
        },
    ),
    Entry(
        "mismatch/kl_k3",
        "mean of exp(d) - 1 - d, d = log pi_old - log mu: estimates KL(mu || pi_old), never negative",
        "dense 1e-5 to 1e-3, MoE 1e-3 to 1e-1 (Miles); Qwen3-30B-A3B 1.5e-3, 7.5e-4 with R3 (2510.11370)",
        {
            "verl": Name("rollout_corr/k3_kl"),
            "prime-rl": Name("mismatch_kl/mean", caveat="of pi_theta instead of pi_old: staleness is in it"),
            "nemo-rl": Name("train/gen_kl_error", caveat="with reference_policy_kl_type k3"),
            "slime": Name("train/mis_k3_kl", caveat=f"{PER_RESPONSE}; needs its mismatch helper"),
        },
    ),
    Entry(
        "mismatch/logprob_abs_diff",
        "mean of |log pi_old - log mu|",
        "0.032 without and 0.006 with R3 on a 16B MoE (AReaL); slime's own tests stop above 0.1",
        {
            "slime": Name("train/train_rollout_logprob_abs_diff", caveat=PER_RESPONSE),
            "trl": Name(
                "sampling/sampling_logp_difference/mean",
                caveat=TOKENS_OF_MEAN,
                aliases=("train/sampling/sampling_logp_difference/mean",),
            ),
            "skyrl": Name("policy/rollout_train_logprobs_abs_diff_mean"),
        },
    ),
    Entry(
        "mismatch/logprob_abs_diff_max",
        "largest |log pi_old - log mu|",
        "grows with the number of tokens",
        {
            "trl": Name(
                "sampling/sampling_logp_difference/max", aliases=("train/sampling/sampling_logp_difference/max",)
            ),
            "skyrl": Name("policy/rollout_train_logprobs_abs_diff_max"),
        },
    ),
    Entry(
        "mismatch/prob_diff_mean",
        "mean of |pi_old - mu|",
        "no jump (TIS blog)",
        {"verl": Name("training/rollout_probs_diff_mean", caveat="over tokens; ours over responses")},
    ),
    Entry(
        "mismatch/ppl_ratio",
        "mean over responses of exp(mean_t (log mu - log pi_old)); above 1 the trainer is less confident",
        "near 1",
        {
            "verl": Name("rollout_corr/ppl_ratio"),
            "slime": Name("train/mis_ppl_ratio", caveat="needs its mismatch helper"),
        },
    ),
    Entry(
        "mismatch/ppl_trainer",
        "perplexity of responses under pi_old",
        "spikes with the mismatch (MIS blog)",
        {
            "verl": Name("rollout_corr/training_ppl"),
            "slime": Name("train/mis_training_ppl", caveat="needs its mismatch helper"),
        },
    ),
    Entry(
        "mismatch/ppl_sampler",
        "perplexity of responses under mu",
        "as ppl_trainer",
        {
            "verl": Name("rollout_corr/rollout_ppl"),
            "slime": Name("train/mis_rollout_ppl", caveat="needs its mismatch helper"),
        },
    ),
    Entry(
        "mismatch/log_ppl_diff",
        "mean over responses of mean_t (log mu - log pi_old)",
        "as kl_k1",
        {
            "verl": Name("rollout_corr/log_ppl_diff"),
            "slime": Name("train/mis_log_ppl_diff", caveat="needs its mismatch helper"),
        },
    ),
    Entry(
        "mismatch/chi2",
        "mean of (pi_old / mu)^2 - 1 over tokens",
        "below 1 (verl warns above)",
        {"verl": Name("rollout_corr/chi2_token")},
    ),
    Entry(
        "mismatch/chi2_seq",
        "mean over responses of (prod_t pi_old / mu)^2 - 1",
        "saturated at long responses, also on policy",
        {"verl": Name("rollout_corr/chi2_seq", caveat="log ratio clamped at 20 before doubling; ours after")},
    ),
    Entry(
        "staleness/log_ratio_mean",
        "mean of log pi_theta - log pi_old",
        "0 at N=1; small and negative",
        {
            "verl": Name("actor/ppo_kl", -1.0, "mean over the updates of the step; not for loss_mode=dro"),
            "slime": Name("train/ppo_kl", -1.0, PER_RESPONSE),
        },
    ),
    Entry(
        "staleness/ratio_max",
        "largest pi_theta / pi_old",
        "bounded; grows within a batch",
        {"nemo-rl": Name("train/probs_ratio_max", caveat="of a whole response with sequence-level ratios")},
    ),
    Entry(
        "clip/fraction",
        "share of tokens that the trust region masks",
        "0 at N=1; a few percent at 0.2 / 0.27, GSPO about 100 times more (GSPO §5.2)",
        {
            "verl": Name("actor/pg_clipfrac"),
            "prime-rl": Name("is_masked/mean"),
            "slime": Name("train/pg_clipfrac", caveat=PER_RESPONSE),
            "trl": Name("clip_ratio/region_mean", aliases=("train/clip_ratio/region_mean",)),
            "skyrl": Name("policy/loss_metrics/clip_ratio"),
        },
    ),
    Entry(
        "clip/high",
        "the part of clip/fraction with A > 0",
        "as clip/fraction",
        {
            "prime-rl": Name("is_masked_high/mean"),
            "trl": Name("clip_ratio/high_mean", aliases=("train/clip_ratio/high_mean",)),
        },
    ),
    Entry(
        "clip/low",
        "the part of clip/fraction with A < 0",
        "as clip/fraction",
        {
            "prime-rl": Name("is_masked_low/mean"),
            "trl": Name("clip_ratio/low_mean", aliases=("train/clip_ratio/low_mean",)),
        },
    ),
    Entry(
        "is_weight/mean",
        "mean importance weight",
        "between 0.5 and 2 (verl warns outside)",
        {
            "verl": Name("rollout_corr/rollout_is_mean", caveat=DISCREPANCY_ONLY),
            "nemo-rl": Name("train/sampling_importance_ratio", caveat=DISCREPANCY_ONLY),
            "slime": Name("train/mis_ratio_mean_after_mis", caveat=f"{DISCREPANCY_ONLY}; needs its mismatch helper"),
            "skyrl": Name("policy/loss_metrics/is_ratio_mean", caveat=DISCREPANCY_ONLY),
            "trl": Name(
                "sampling/importance_sampling_ratio/mean",
                caveat=DISCREPANCY_ONLY,
                aliases=("train/sampling/importance_sampling_ratio/mean",),
            ),
        },
    ),
    Entry(
        "is_weight/max",
        "largest importance weight",
        "at its cap, where there is one",
        {
            "verl": Name("rollout_corr/rollout_is_max", caveat=DISCREPANCY_ONLY),
            "trl": Name(
                "sampling/importance_sampling_ratio/max",
                caveat=DISCREPANCY_ONLY,
                aliases=("train/sampling/importance_sampling_ratio/max",),
            ),
        },
    ),
    Entry(
        "is_weight/capped",
        "share of tokens whose weight a bound changed",
        "1 to 2 per mille (IcePop)",
        {
            "slime": Name("train/mis_truncate_fraction", caveat=f"{DISCREPANCY_ONLY}; needs its mismatch helper"),
            "skyrl": Name("policy/loss_metrics/tis_token_clip_high_ratio", caveat=DISCREPANCY_ONLY),
        },
    ),
    Entry(
        "is_weight/ess",
        "effective share of the samples",
        "above 0.3 (verl warns below)",
        {"verl": Name("rollout_corr/rollout_is_eff_sample_size", caveat=DISCREPANCY_ONLY)},
    ),
    Entry(
        "reject/fraction",
        "share of tokens of rejected responses",
        "far from 1",
        {"verl": Name("rollout_corr/rollout_rs_masked_fraction")},
    ),
    Entry(
        "optim/grad_norm",
        "gradient norm before clipping",
        "no spikes: they come with those of the KL (MIS blog)",
        {
            "verl": Name("actor/grad_norm"),
            "prime-rl": Name("optim/grad_norm"),
            "nemo-rl": Name("train/grad_norm"),
            "slime": Name("train/grad_norm"),
            "trl": Name("grad_norm", aliases=("train/grad_norm",)),
            "skyrl": Name("policy/grad_norm"),
        },
    ),
    Entry(
        "optim/lr",
        "learning rate",
        "as planned",
        {
            "verl": Name("actor/lr"),
            "prime-rl": Name("optim/lr"),
            "nemo-rl": Name("train/lr"),
            "slime": Name("train/lr-pg_0"),
            "trl": Name("learning_rate", aliases=("train/learning_rate",)),
            "skyrl": Name("policy/policy_lr"),
        },
    ),
)


def columns(stack: str) -> Iterator[tuple[Entry, Name]]:
    """The entries that a stack logs."""
    return ((entry, entry.theirs[stack]) for entry in ENTRIES if stack in entry.theirs)
