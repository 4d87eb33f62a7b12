"""The objectives as their papers print them, on padded matrices, to be differentiated by autograd.

Every function maximises, takes a `Setting` and returns (objective, branches): `branches` names the cases of the
formula and says at which tokens each is met. Nothing here is shared with minirl.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Branches = dict[str, Tensor]
Objective = Callable[["Setting"], tuple[Tensor, Branches]]


@dataclass(frozen=True)
class Setting:
    """[B, longest] log-probabilities (theta differentiable), mask; rewards [B]; group size; generation budget."""

    theta: Tensor
    old: Tensor
    mu: Tensor
    mask: Tensor
    rewards: Tensor
    group_size: int
    budget: int

    @property
    def r(self) -> Tensor:
        return (self.theta - self.old).exp()

    @property
    def w(self) -> Tensor:
        return (self.old - self.mu).exp()

    @property
    def q(self) -> Tensor:
        return (self.theta - self.mu).exp()

    @property
    def rho(self) -> Tensor:
        """prod_t w_t, [B, 1]."""
        return torch.where(self.mask, self.w, 1.0).prod(1, keepdim=True)

    @property
    def lengths(self) -> Tensor:
        return self.mask.sum(1)

    @property
    def centred(self) -> Tensor:
        """R - mean, [B, 1]."""
        grouped = self.rewards.view(-1, self.group_size)
        return (grouped - grouped.mean(1, keepdim=True)).view(-1, 1)

    @property
    def standard(self) -> Tensor:
        """(R - mean) / (std + 1e-6), [B, 1]."""
        spread = self.rewards.view(-1, self.group_size).std(1).repeat_interleave(self.group_size)
        return self.centred / (spread[:, None] + 1e-6)

    def per_response_sum(self, terms: Tensor) -> Tensor:
        return torch.where(self.mask, terms, 0.0).sum(1).mean()

    def per_response_mean(self, terms: Tensor) -> Tensor:
        return (torch.where(self.mask, terms, 0.0).sum(1) / self.lengths).mean()

    def per_token(self, terms: Tensor) -> Tensor:
        return terms[self.mask].mean()


def capped(ratio: Tensor, cap: float) -> Tensor:
    """sg[min(x, cap) / x]: turns a ratio into a truncated one without changing where its gradient goes."""
    return (ratio.detach().clamp(max=cap) / ratio.detach()).detach()


def ppo(ratio: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    return torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def ppo_branches(ratio: Tensor, advantage: Tensor, low: float, high: float) -> Branches:
    return {
        "A>0 clipped": (advantage > 0) & (ratio > 1 + high),
        "A<0 clipped": (advantage < 0) & (ratio < 1 - low),
        "A>0 comes back": (advantage > 0) & (ratio < 1 - low),
        "A<0 comes back": (advantage < 0) & (ratio > 1 + high),
        "free": (ratio < 1 + high) & (ratio > 1 - low) & (advantage != 0),
        "A=0": (advantage == 0).expand_as(ratio),
    }


def cap_branches(s: Setting) -> Branches:
    """Where a cap on the product differs from one on the discrepancy, at tokens that teach."""
    teaches = s.centred != 0
    return {
        "q<=5 though w>5": teaches & (s.w > 5) & (s.q <= 5),
        "q>5 though w<=5": teaches & (s.w <= 5) & (s.q > 5),
        "w>5": teaches & (s.w > 5),
    }


def minirl(s: Setting) -> tuple[Tensor, Branches]:
    """Decoupled PPO with token weights, w min(r A, clip(r) A), whose product w r is truncated at 5."""
    objective = s.per_response_sum(capped(s.q, 5) * s.w * ppo(s.r, s.centred, 0.2, 0.27))
    return objective, ppo_branches(s.r, s.centred, 0.2, 0.27) | cap_branches(s)


def minirl_no_is(s: Setting) -> tuple[Tensor, Branches]:
    objective = s.per_response_sum(capped(s.r, 5) * ppo(s.r, s.centred, 0.2, 0.27))
    return objective, ppo_branches(s.r, s.centred, 0.2, 0.27) | {"r>5, A<0": (s.r > 5) & (s.centred < 0)}


def minirl_no_clip(s: Setting) -> tuple[Tensor, Branches]:
    """The surrogate J_token itself (eq 3), R replaced by A, its ratio truncated at 5."""
    return s.per_response_sum(capped(s.q, 5) * s.q * s.centred), cap_branches(s)


def minirl_length_norm(s: Setting) -> tuple[Tensor, Branches]:
    objective = s.per_response_mean(capped(s.q, 5) * s.w * ppo(s.r, s.centred, 0.2, 0.27))
    return objective, ppo_branches(s.r, s.centred, 0.2, 0.27) | cap_branches(s)


def reinforce(s: Setting) -> tuple[Tensor, Branches]:
    return s.per_response_sum(s.theta * s.centred), {}


def seq_is(s: Setting) -> tuple[Tensor, Branches]:
    """eq 1: the ratio of whole responses."""
    ratio = torch.where(s.mask, s.theta - s.mu, 0.0).sum(1).exp()
    return (ratio * s.centred.squeeze(1)).mean(), {"ratio>5": ratio > 5, "ratio<1/5": ratio < 0.2}


def grpo(s: Setting) -> tuple[Tensor, Branches]:
    return s.per_response_mean(ppo(s.r, s.standard, 0.2, 0.2)), ppo_branches(s.r, s.standard, 0.2, 0.2)


def dr_grpo(s: Setting) -> tuple[Tensor, Branches]:
    objective = s.per_response_sum(ppo(s.r, s.centred, 0.2, 0.2)) / s.budget
    return objective, ppo_branches(s.r, s.centred, 0.2, 0.2)


def dapo(s: Setting) -> tuple[Tensor, Branches]:
    """Only groups with 0 < #correct < G, whose tokens are averaged."""
    correct = s.rewards.view(-1, s.group_size).sum(1)
    mixed = ((correct > 0) & (correct < s.group_size)).repeat_interleave(s.group_size)
    used = s.mask & mixed[:, None]
    branches = ppo_branches(s.r, s.standard, 0.2, 0.28)
    branches |= {"none correct": correct == 0, "all correct": correct == s.group_size, "mixed": mixed}
    return ppo(s.r, s.standard, 0.2, 0.28)[used].mean(), branches


def cispo(s: Setting) -> tuple[Tensor, Branches]:
    objective = s.per_token(s.r.detach().clamp(max=5) * s.standard * s.theta)
    return objective, {"r>5": s.r > 5, "r in (1.2, 5], A>0": (s.r > 1.2) & (s.r <= 5) & (s.standard > 0)}


def gspo(s: Setting) -> tuple[Tensor, Branches]:
    """Per response: s_i = (prod_t r_t)^(1 / |y_i|), differentiated as such."""
    ratio = (torch.where(s.mask, s.theta - s.old, 0.0).sum(1) / s.lengths).exp()
    advantage = s.standard.squeeze(1)
    objective = ppo(ratio, advantage, 3e-4, 4e-4).mean()
    return objective, ppo_branches(ratio, advantage, 3e-4, 4e-4)


def sapo(s: Setting) -> tuple[Tensor, Branches]:
    tau = torch.where(s.standard > 0, 1.0, 1.05 * torch.ones_like(s.standard))
    objective = s.per_response_mean(4 / tau * torch.sigmoid(tau * (s.r - 1)) * s.standard)
    return objective, {"A>0": s.standard.expand_as(s.r) > 0, "A<0, r>2": (s.standard < 0) & (s.r > 2)}


def icepop(s: Setting) -> tuple[Tensor, Branches]:
    band = torch.where((s.w >= 0.5) & (s.w <= 5), s.w, 0.0)
    branches = {"w<1/2": s.w < 0.5, "w in band, not 1": (s.w > 1.5) & (s.w <= 5), "w>5": s.w > 5}
    objective = s.per_response_mean(band * ppo(s.r, s.standard, 0.2, 0.2))
    return objective, branches | ppo_branches(s.r, s.standard, 0.2, 0.2)


def tis(s: Setting) -> tuple[Tensor, Branches]:
    objective = s.per_response_mean(s.w.clamp(max=2) * ppo(s.r, s.standard, 0.2, 0.2))
    return objective, {"w>2": s.w > 2, "w<=2, r w>2": (s.w <= 2) & (s.q > 2)} | ppo_branches(s.r, s.standard, 0.2, 0.2)


def mis(s: Setting) -> tuple[Tensor, Branches]:
    objective = s.per_response_mean(torch.where(s.w <= 2, s.w, 0.0) * ppo(s.r, s.standard, 0.2, 0.2))
    return objective, {"w>2": s.w > 2, "w<1/2": s.w < 0.5} | ppo_branches(s.r, s.standard, 0.2, 0.2)


def seq_tis(s: Setting) -> tuple[Tensor, Branches]:
    objective = s.per_response_mean(s.rho.clamp(max=2) * ppo(s.r, s.standard, 0.2, 0.2))
    return objective, {"rho>2": s.rho > 2, "rho<1/2": s.rho < 0.5} | ppo_branches(s.r, s.standard, 0.2, 0.2)


def seq_mis(s: Setting) -> tuple[Tensor, Branches]:
    """The expectation over mu: a rejected response is a zero of the mean."""
    kept = torch.where(s.rho <= 2, s.rho, 0.0)
    objective = s.per_response_mean(kept * ppo(s.r, s.standard, 0.2, 0.2))
    return objective, {"rho>2": s.rho > 2, "rho<=2": s.rho <= 2} | ppo_branches(s.r, s.standard, 0.2, 0.2)


def geo_rs(s: Setting) -> tuple[Tensor, Branches]:
    """GRPO over the responses that survive."""
    mean_ratio = (torch.where(s.mask, s.old - s.mu, 0.0).sum(1) / s.lengths).exp()
    kept = (mean_ratio >= 0.999) & (mean_ratio <= 1.001)
    per_response = torch.where(s.mask, ppo(s.r, s.standard, 0.2, 0.2), 0.0).sum(1) / s.lengths
    branches = {"too low": mean_ratio < 0.999, "too high": mean_ratio > 1.001, "kept": kept}
    return per_response[kept].mean(), branches | ppo_branches(s.r[kept], s.standard[kept], 0.2, 0.2)


def divergence_branches(divergence: Tensor, delta: float, ratio: Tensor, advantage: Tensor) -> Branches:
    far = divergence > delta
    return {
        "A>0 masked": far & (advantage > 0) & (ratio > 1),
        "A<0 masked": far & (advantage < 0) & (ratio < 1),
        "far, A>0, comes back": far & (advantage > 0) & (ratio < 1),
        "far, A<0, comes back": far & (advantage < 0) & (ratio > 1),
        "near": ~far & (advantage != 0),
    }


def dppo_mask(divergence: Tensor, delta: float, ratio: Tensor, advantage: Tensor) -> Tensor:
    away = ((advantage > 0) & (ratio > 1)) | ((advantage < 0) & (ratio < 1))
    return torch.where((divergence > delta) & away, 0.0, 1.0).double().detach()


def binary_kl(reference: Tensor, new: Tensor) -> Tensor:
    p, m = new.exp(), reference.exp()
    return m * (m / p).log() + (1 - m) * ((1 - m) / (1 - p)).log()


def dppo(s: Setting) -> tuple[Tensor, Branches]:
    divergence = (s.theta.exp() - s.mu.exp()).abs()
    mask = dppo_mask(divergence, 0.2, s.q, s.centred)
    objective = s.per_response_sum(mask * capped(s.q, 5) * s.q * s.centred)
    return objective, divergence_branches(divergence, 0.2, s.q, s.centred) | cap_branches(s)


def grpo_mu(s: Setting) -> tuple[Tensor, Branches]:
    return s.per_response_sum(ppo(s.q, s.centred, 0.2, 0.27)), ppo_branches(s.q, s.centred, 0.2, 0.27)


def dppo_kl(s: Setting) -> tuple[Tensor, Branches]:
    divergence = binary_kl(s.mu, s.theta)
    objective = s.per_response_sum(dppo_mask(divergence, 0.05, s.q, s.centred) * s.q * s.centred)
    return objective, divergence_branches(divergence, 0.05, s.q, s.centred)


def dppo_old(s: Setting) -> tuple[Tensor, Branches]:
    divergence = binary_kl(s.old, s.theta)
    objective = s.per_response_sum(dppo_mask(divergence, 0.05, s.r, s.centred) * s.q * s.centred)
    return objective, divergence_branches(divergence, 0.05, s.r, s.centred)


def dual_clip(s: Setting) -> tuple[Tensor, Branches]:
    """GRPO with max(min(r A, clip(r) A), 3 A) for A < 0 (arXiv 1912.09729)."""
    clipped = ppo(s.r, s.standard, 0.2, 0.2)
    objective = s.per_response_mean(torch.where(s.standard < 0, torch.maximum(clipped, 3 * s.standard), clipped))
    return objective, {"A<0, r>3": (s.standard < 0) & (s.r > 3), "A>0, r>3": (s.standard > 0) & (s.r > 3)}


def group_token_mean(s: Setting) -> tuple[Tensor, Branches]:
    """DAPO as its paper prints it: an expectation over prompts of the token mean of the prompt's group."""
    terms = torch.where(s.mask, ppo(s.r, s.standard, 0.2, 0.28), 0.0).sum(1).view(-1, s.group_size).sum(1)
    return (terms / s.lengths.view(-1, s.group_size).sum(1)).mean(), ppo_branches(s.r, s.standard, 0.2, 0.28)


OBJECTIVES: dict[str, Objective] = {
    objective.__name__: objective
    for objective in (
        minirl, minirl_no_is, minirl_no_clip, minirl_length_norm, reinforce, seq_is, grpo, dr_grpo, dapo, cispo, gspo,
        sapo, icepop, tis, mis, seq_tis, seq_mis, geo_rs, dppo, grpo_mu, dppo_kl, dppo_old,
    )
}  # fmt: skip
