"""Every configuration of conf/algo against autograd of the objective its paper publishes."""

from __future__ import annotations

from dataclasses import fields, replace

import published
import pytest
import torch
from algo_cases import METHODS, Draw, algo_config, algorithm, draw, gradient, prepared
from torch import Tensor

from minirl.algo.algorithm import PolicyGradient

DRAWS = [draw(seed) for seed in (3, 8, 21, 37, 48)]  # chosen to meet every branch, see the counts
BUDGET = 12  # sampling.max_response_tokens of the default task

CASES = {name: (algorithm(name), published.OBJECTIVES[name]) for name in METHODS} | {
    "dual clip": (algorithm("grpo", "algo.trust_region.dual=3"), published.dual_clip),
    "dapo per group": (
        algorithm("dapo", "algo.reject.groups=all", "algo.aggregation.kind=group_token_mean"),
        published.group_token_mean,
    ),
    "constant scale": (
        algorithm("minirl", "algo.aggregation.scale=3"),
        lambda s: (3 * published.minirl(s)[0], {}),
    ),
}


def setting(sample: Draw) -> published.Setting:
    batch = sample.batch
    return published.Setting(
        theta=sample.unpacked(sample.response_logprobs()),
        old=sample.padded(batch.old.logprobs),
        mu=sample.padded(batch.rollouts.rollout_logprobs),
        mask=sample.mask,
        rewards=batch.rewards.values,
        group_size=batch.rollouts.group_size,
        budget=BUDGET,
    )


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def met(branch: Tensor, mask: Tensor) -> int:
    """At how many tokens (or responses) a branch is met."""
    return int((branch & mask).sum() if branch.shape == mask.shape else branch.sum())


def test_every_configuration_has_an_oracle() -> None:
    assert set(METHODS) == set(published.OBJECTIVES)
    assert all(algo_config(name).name == name for name in METHODS)


@pytest.mark.parametrize("case", CASES)
def test_gradient_equals_the_published_objective(case: str) -> None:
    """d loss / d logits = - d J / d logits to 1e-12, over draws that together meet every branch of the formula."""
    algo, objective = CASES[case]
    counts: dict[str, int] = {}
    for sample in DRAWS:
        view = setting(sample)
        value, branches = objective(view)
        expected = -torch.autograd.grad(value, sample.theta_logits)[0]
        terms = algo.loss(sample.logprobs(), prepared(algo, sample.batch), on_policy=False)
        found = torch.autograd.grad(terms.loss, sample.theta_logits)[0]
        assert relative(found, expected) < 1e-12
        for name, branch in branches.items():
            counts[name] = counts.get(name, 0) + met(branch, view.mask)
    assert all(count >= 1 for count in counts.values()), counts


@pytest.mark.parametrize("case", CASES)
def test_loss_value_is_the_gradient_form(case: str) -> None:
    """loss = - sum_t (d J / d log pi_t) log pi_t, the factor taken from the published objective."""
    algo, objective = CASES[case]
    for sample in DRAWS:
        view = setting(sample)
        factor = torch.autograd.grad(objective(view)[0], view.theta)[0]
        terms = algo.loss(sample.logprobs(), prepared(algo, sample.batch), on_policy=False)
        expected = -(factor * view.theta)[view.mask].sum()
        assert terms.loss.item() == pytest.approx(expected.item(), rel=1e-11, abs=1e-13)


def on_policy_gradient(algo: PolicyGradient, sample: Draw) -> Tensor:
    return gradient(algo, prepared(algo, sample.batch), sample.logprobs(), on_policy=True)[0]


@pytest.mark.parametrize(("left", "right"), [("minirl", "minirl_no_clip"), ("reinforce", "minirl_no_is")])
def test_identical_arms_on_policy(left: str, right: str) -> None:
    """N = 1: staleness is exactly 1, so clipping is inert and the two arms agree bit for bit."""
    for sample in DRAWS:
        first, second = (on_policy_gradient(algorithm(name), sample) for name in (left, right))
        assert torch.equal(first, second)
        assert first.abs().sum() > 0


def test_on_policy_staleness_is_exactly_one() -> None:
    """Mask fraction 0 whatever the recompute pass returned; the weight is then pi_theta / mu of this pass."""
    algo = algorithm("minirl")
    for sample in DRAWS:
        _, terms = gradient(algo, prepared(algo, sample.batch), sample.logprobs(), on_policy=True)
        mask = sample.batch.rollouts.response_mask
        assert bool((terms.kept == mask).all())
        assert not terms.log_staleness.any() and not terms.would_clip.any()
        assert not (terms.high | terms.low).any()
        ratio = (sample.logprobs() - sample.batch.rollouts.rollout_logprobs).exp().clamp(max=5)
        assert torch.equal(terms.is_weight[mask], ratio[mask])


@pytest.mark.parametrize("name", ["grpo_mu", "dppo", "dppo_kl"])
def test_anchor_mu_is_not_inert_on_policy(name: str) -> None:
    algo = algorithm(name)
    masked = sum(
        int((terms.high | terms.low).sum())
        for sample in DRAWS
        for terms in [gradient(algo, prepared(algo, sample.batch), sample.logprobs(), on_policy=True)[1]]
    )
    assert masked > 0


def test_would_clip_is_the_paper_mask_for_every_method() -> None:
    """clip/would_be: 0.2 / 0.27 against pi_old, also where there is no region or another one."""
    for name in METHODS:
        for sample in DRAWS[:2]:
            algo = algorithm(name)
            terms = gradient(algo, prepared(algo, sample.batch), sample.logprobs())[1]
            view = setting(sample)
            advantage = sample.padded(terms.advantages)
            expected = ((advantage > 0) & (view.r > 1.27)) | ((advantage < 0) & (view.r < 0.8))
            assert torch.equal(sample.padded(terms.would_clip), expected & view.mask)


def test_terms_say_what_was_done_and_to_which_tokens() -> None:
    """MiniRL: masked with A > 0 (high) and with A < 0 (low), capped where q > 5, and the two log ratios."""
    algo = algorithm("minirl")
    for sample in DRAWS:
        view, batch = setting(sample), prepared(algo, sample.batch)
        branches = published.minirl(view)[1]
        terms = gradient(algo, batch, sample.logprobs())[1]
        seen = {name: sample.padded(getattr(terms, name)) for name in ("high", "low", "capped", "log_discrepancy")}
        assert torch.equal(seen["high"], branches["A>0 clipped"] & view.mask)
        assert torch.equal(seen["low"], branches["A<0 clipped"] & view.mask)
        assert seen["high"].any() and seen["low"].any()
        assert torch.equal(seen["capped"], (view.q > 5) & view.mask)
        assert torch.equal(seen["log_discrepancy"], view.old - view.mu)
        assert torch.equal(sample.padded(terms.log_staleness), (view.theta - view.old).detach())
        on_policy = gradient(algo, batch, sample.logprobs(), on_policy=True)[1]
        assert torch.equal(sample.padded(on_policy.log_discrepancy), (view.theta - view.mu).detach())


def test_decoupled_ppo_identity() -> None:
    """M = 1, no cap: the gradient of J_token with R replaced by A; with the mask: of w min(r A, clip(r) A)."""
    uncapped = "algo.is_weight.product.high=null"
    plain, masked = algorithm("minirl_no_clip", uncapped), algorithm("minirl", uncapped)
    for sample in DRAWS:
        view = setting(sample)
        for algo, objective in (
            (plain, view.per_response_sum(view.q * view.centred)),
            (masked, view.per_response_sum(view.w * published.ppo(view.r, view.centred, 0.2, 0.27))),
        ):
            expected = -torch.autograd.grad(objective, view.theta, retain_graph=True)[0]
            found = gradient(algo, prepared(algo, sample.batch), sample.logprobs())[0]
            assert relative(sample.padded(found), expected) < 1e-12


@pytest.mark.parametrize("name", METHODS)
def test_equal_rewards_teach_nothing(name: str) -> None:
    """Every group all right or all wrong: advantage, loss and gradient are 0, whatever the baseline divides by."""
    algo, sample = algorithm(name), DRAWS[0]
    values = torch.arange(len(sample.batch)).div(8, rounding_mode="floor").remainder(2).float() * 0.1
    batch = prepared(algo, replace(sample.batch, rewards=replace(sample.batch.rewards, values=values)))
    found, terms = gradient(algo, batch, sample.logprobs())
    assert not batch.advantages.any() and not found.any() and terms.loss.item() == 0.0


@pytest.mark.parametrize("name", METHODS)
def test_float32_is_enough(name: str) -> None:
    """The dtype of training: the same gradient to 1e-4 of its norm, every term in float32 (masks apart)."""
    algo, sample = algorithm(name), DRAWS[1]
    batch = sample.batch
    single = replace(
        batch,
        rollouts=replace(batch.rollouts, rollout_logprobs=batch.rollouts.rollout_logprobs.float()),
        old=replace(batch.old, logprobs=batch.old.logprobs.float()),
        rewards=replace(batch.rewards, values=batch.rewards.values.float()),
    )
    expected = gradient(algo, prepared(algo, batch), sample.logprobs())[0]
    found, terms = gradient(algo, prepared(algo, single), sample.logprobs().float())
    floats = {getattr(terms, spec.name).dtype for spec in fields(terms)}
    assert floats == {torch.float32, torch.bool}
    assert float((found - expected).norm()) < 1e-4 * float(expected.norm())
