"""The sorted experts equal the formula, in value and gradient."""

import torch
from model_cases import moe
from torch.nn.functional import silu

from minirl.models.experts import sorted_loop


def formula(experts, hidden, chosen, weights):
    """sum_j weights_tj down_j (silu(gate_j x_t) * up_j x_t), token by token."""
    rows = []
    for x, picks, scale in zip(hidden, chosen.tolist(), weights, strict=True):
        terms = []
        for expert, weight in zip(picks, scale, strict=True):
            gate, up = (experts.gate_up_proj[expert] @ x).chunk(2)
            terms.append(weight * (experts.down_proj[expert] @ (silu(gate) * up)))
        rows.append(torch.stack(terms).sum(0))
    return torch.stack(rows)


def test_value_and_gradient_are_those_of_the_formula():
    experts = moe(dtype=torch.float64, layers=1).model.layers[0].mlp.experts
    draw = torch.Generator().manual_seed(0)
    chosen = torch.stack([torch.randperm(5, generator=draw)[:2] for _ in range(9)])  # expert 5 is never chosen
    figures = []
    for function in (sorted_loop, formula):
        hidden = torch.randn(9, 16, dtype=torch.float64, generator=draw.manual_seed(1)).requires_grad_()
        weights = torch.rand(9, 2, dtype=torch.float64, generator=draw).requires_grad_()
        experts.zero_grad()
        mixed = function(experts, hidden, chosen, weights)
        mixed.square().sum().backward()
        figures.append([mixed, hidden.grad, weights.grad, experts.gate_up_proj.grad, experts.down_proj.grad])
    for ours, expected in zip(*figures, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)
    assert figures[0][3][5].abs().max() == 0


def test_a_token_alone_and_in_company():
    experts = moe(dtype=torch.float64, layers=1).model.layers[0].mlp.experts
    hidden, chosen = torch.randn(7, 16, dtype=torch.float64), torch.tensor([[4, 1]] * 7)
    weights = torch.rand(7, 2, dtype=torch.float64)
    together = sorted_loop(experts, hidden, chosen, weights)
    alone = sorted_loop(experts, hidden[3:4], chosen[3:4], weights[3:4])
    torch.testing.assert_close(together[3:4], alone, rtol=1e-13, atol=1e-13)
