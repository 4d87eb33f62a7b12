"""What changed between two arms, in words."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minirl.switches.measure import Observation
from minirl.switches.pairs import Pair

ROUNDING = 1e-6  # relative: smaller differences are those of floating-point sums


def difference(pair: Pair, first: Observation, second: Observation) -> list[str]:
    """One line for each thing that the choice changes; none where nothing changes in this batch."""
    if not _equal(first.rollouts.tokens, second.rollouts.tokens):
        lines = [_rollouts(first, second)]
    else:
        lines = [*_logprobs(first, second), *_tokens(first, second)]
    gradients = _vectors("gradient", first.probe.gradient, second.probe.gradient)
    return [*lines, *_loss(first, second), *gradients, *_vectors("step", first.step, second.step)]


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one == other).all())


def _rollouts(first: Observation, second: Observation) -> str:
    one, other = (_responses(each) for each in (first, second))
    if len(one) != len(other):
        return f"rollouts: {len(one)} and {len(other)} responses"
    differing = sum(left != right for left, right in zip(one, other, strict=True))
    return f"rollouts: {differing} of {len(one)} responses are others"


def _responses(seen: Observation) -> list[list[int]]:
    return [part.tolist() for part in seen.rollouts.tokens.split(seen.rollouts.lengths.tolist())]


def _logprobs(first: Observation, second: Observation) -> list[str]:
    gap = (first.rollouts.rollout_logprobs - second.rollouts.rollout_logprobs).abs()
    mask = first.rollouts.response_mask
    return [f"rollouts: log mu differs by {float(gap[mask].mean()):.2g} in the mean"] if bool(gap.any()) else []


def _tokens(first: Observation, second: Observation) -> list[str]:
    """Tokens of the same responses: what is rejected, masked, weighted."""
    lines, one, other = [], first.probe, second.probe
    if len(one.kept) != len(other.kept):
        return [f"mini-batch: {len(one.kept)} and {len(other.kept)} response tokens"]
    rejected = _share(one.accepted != other.accepted)
    masked = _share((one.kept - other.kept).abs() > ROUNDING)
    gap = (one.is_weight - other.is_weight).abs()
    weighted = _share(gap > ROUNDING * one.is_weight.abs().clamp_min(1.0))
    lines += [f"rejection: {rejected:.2%} of tokens"] if rejected else []
    lines += [f"mask: {masked:.2%} of tokens"] if masked else []
    lines += [f"weight: {weighted:.2%} of tokens, by {float(gap.max()):.2g} at most"] if weighted else []
    return lines


def _share(differs: Tensor) -> float:
    return float(differs.double().mean())


def _loss(first: Observation, second: Observation) -> list[str]:
    one, other = first.probe.loss, second.probe.loss
    same = math.isclose(one, other, rel_tol=10 * ROUNDING, abs_tol=ROUNDING)
    return [] if same else [f"loss: {one:.4g} and {other:.4g}"]


def _vectors(name: str, one: Tensor, other: Tensor) -> list[str]:
    if one.shape != other.shape:
        return [f"{name}: of {len(one)} and of {len(other)} parameters"]
    sizes = float(one.double().norm()), float(other.double().norm())
    if float((one.double() - other.double()).norm()) <= 10 * ROUNDING * max(*sizes, 1e-30):
        return []
    if min(sizes) == 0:
        return [f"{name}: norms {sizes[0]:.3g} and {sizes[1]:.3g}"]
    cosine = float(torch.dot(one.double(), other.double())) / (sizes[0] * sizes[1])
    angle = math.degrees(math.acos(max(-1.0, min(1.0, cosine))))
    return [f"{name}: angle {angle:.2g}°, norm x {sizes[1] / sizes[0]:.4g}"]
