"""The MoE layer of every family as its authors publish it, on plain tensors: no code of the models under test.

x [T, h] · weights: the layer's own, by name · experts [T, k]: given, whoever chose them · returns [T, h].

Qwen2-MoE, Qwen3-MoE, Qwen3-Next, Qwen3.5-MoE (arXiv 2407.10671, 2505.09388), OLMoE (2409.02060), Mixtral (2401.04088):
    s = softmax(W x), w_e = s_e [/ sum of the chosen], y = sum_e w_e E_e(x) [+ sigmoid(g x) shared(x)]
DeepSeek-V3 (2412.19437, eq 12-16), GLM-4.5 (2508.06471):
    s = sigmoid(W x), w_e = c s_e [/ sum of the chosen], y = sum_e w_e E_e(x) + shared(x);
    chosen by s + b among the groups whose two best experts sum highest
gpt-oss (2508.10925): l = W x + b, w = softmax of the chosen l, experts with clamped SwiGLU and biases
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
Layer = Callable[[Any, Weights, Tensor, Tensor], Tensor]
Choice = Callable[[Any, Weights, Tensor], Tensor]


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    inner = x @ gate.T
    return (inner * inner.sigmoid() * (x @ up.T)) @ down.T


def mixture(weights: Weights, x: Tensor, experts: Tensor, mixing: Tensor) -> Tensor:
    """sum_e w_e E_e(x), token by token."""
    stacked, down = weights["experts.gate_up_proj"], weights["experts.down_proj"]
    half = stacked.shape[1] // 2
    rows = []
    for token, chosen, scale in zip(x, experts.tolist(), mixing, strict=True):
        outputs = [swiglu(token, stacked[e, :half], stacked[e, half:], down[e]) for e in chosen]
        rows.append((torch.stack(outputs) * scale[:, None]).sum(0))
    return torch.stack(rows)


def softmax_scores(weights: Weights, x: Tensor) -> Tensor:
    exponentials = (x @ weights["gate.weight"].T).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def softmax_choice(config: Any, weights: Weights, x: Tensor) -> Tensor:
    return softmax_scores(weights, x).argsort(-1, descending=True)[:, : config.num_experts_per_tok]


def softmax_layer(renormalised: Callable[[Any], bool], *, shared: bool) -> Layer:
    def layer(config: Any, weights: Weights, x: Tensor, experts: Tensor) -> Tensor:
        mixing = torch.stack(
            [scores[chosen] for scores, chosen in zip(softmax_scores(weights, x), experts, strict=True)]
        )
        if renormalised(config):
            mixing = mixing / mixing.sum(-1, keepdim=True)
        routed = mixture(weights, x, experts, mixing)
        if not shared:
            return routed
        own = swiglu(x, *(weights[f"shared_expert.{part}_proj.weight"] for part in ("gate", "up", "down")))
        return routed + (x @ weights["shared_expert_gate.weight"].T).sigmoid() * own

    return layer


def sigmoid_choice(config: Any, weights: Weights, x: Tensor) -> Tensor:
    """Group by group: the groups with the highest sum of their two best, then the best experts in those."""
    biased = (x @ weights["gate.weight"].T).sigmoid() + weights["gate.e_score_correction_bias"]
    size = config.n_routed_experts // config.n_group
    rows = []
    for scores in biased.tolist():
        groups = [scores[start : start + size] for start in range(0, len(scores), size)]
        worth = [sum(sorted(group)[-2:]) for group in groups]
        best = sorted(range(len(groups)), key=lambda g: -worth[g])[: config.topk_group]
        allowed = [g * size + place for g in best for place in range(size)]
        rows.append(sorted(allowed, key=lambda e: -scores[e])[: config.num_experts_per_tok])
    return torch.tensor(rows)


def sigmoid_layer(config: Any, weights: Weights, x: Tensor, experts: Tensor) -> Tensor:
    scores = 1 / (1 + (-(x @ weights["gate.weight"].T)).exp())
    mixing = torch.stack([row[chosen] for row, chosen in zip(scores, experts, strict=True)])
    if config.norm_topk_prob:
        mixing = mixing / mixing.sum(-1, keepdim=True)
    own = swiglu(x, *(weights[f"shared_experts.{part}_proj.weight"] for part in ("gate", "up", "down")))
    return mixture(weights, x, experts, config.routed_scaling_factor * mixing) + own


def gpt_oss_logits(weights: Weights, x: Tensor) -> Tensor:
    return x @ weights["router.weight"].T + weights["router.bias"]


def gpt_oss_choice(config: Any, weights: Weights, x: Tensor) -> Tensor:
    return gpt_oss_logits(weights, x).argsort(-1, descending=True)[:, : config.num_experts_per_tok]


def gpt_oss_layer(config: Any, weights: Weights, x: Tensor, experts: Tensor) -> Tensor:
    """E(x) = ((u + 1) g sigmoid(1.702 g)) W2 + b2, with g at most 7 and u within 7 of 0; g and u interleaved."""
    rows = []
    for token, chosen, logits in zip(x, experts.tolist(), gpt_oss_logits(weights, x), strict=True):
        mixing = logits[chosen].exp() / logits[chosen].exp().sum()
        outputs = []
        for expert in chosen:
            inner = token @ weights["experts.gate_up_proj"][expert] + weights["experts.gate_up_proj_bias"][expert]
            gate, up = inner[0::2].clamp(max=7.0), inner[1::2].clamp(-7.0, 7.0)
            activated = (up + 1) * gate * (1.702 * gate).sigmoid()
            outputs.append(activated @ weights["experts.down_proj"][expert] + weights["experts.down_proj_bias"][expert])
        rows.append((torch.stack(outputs) * mixing[:, None]).sum(0))
    return torch.stack(rows)


def as_configured(config: Any) -> bool:
    return bool(config.norm_topk_prob)


def always(config: Any) -> bool:
    return True


SHARED = softmax_layer(as_configured, shared=True)
PUBLISHED: dict[str, tuple[Choice, Layer]] = {
    "qwen3_moe": (softmax_choice, softmax_layer(as_configured, shared=False)),
    "qwen2_moe": (softmax_choice, SHARED),
    "olmoe": (softmax_choice, softmax_layer(as_configured, shared=False)),
    "mixtral": (softmax_choice, softmax_layer(always, shared=False)),
    "deepseek_v3": (sigmoid_choice, sigmoid_layer),
    "glm4_moe": (sigmoid_choice, sigmoid_layer),
    "gpt_oss": (gpt_oss_choice, gpt_oss_layer),
    "qwen3_next": (softmax_choice, SHARED),
    "qwen3_5_moe_text": (softmax_choice, softmax_layer(always, shared=True)),
}
