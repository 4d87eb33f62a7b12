"""The journal of a rollout: memory, alignment, precision."""

import torch

from minirl.engine.journal import Journal
from minirl.types import Prompt


class Layers:
    """As much of a routing tape as packing asks for."""

    layers, num_experts, top_k = (0, 2), 8, 2


def played(lengths: list[int], logprob: float) -> tuple[Journal, list[Prompt]]:
    """Prompts of one token each, sampled side by side for as many tokens as `lengths` says; the last is not fed."""
    journal, prompts = Journal(len(lengths), torch.device("cpu")), [Prompt(i, (3,), None) for i in range(len(lengths))]
    everyone = torch.arange(len(lengths))
    routes = torch.tensor([[[0, 1], [2, 3]]], dtype=torch.uint8)
    journal.prompt(everyone, torch.zeros_like(everyone), torch.full_like(everyone, 3))
    journal.route(everyone, torch.zeros_like(everyone), routes.expand(len(everyone), 2, 2))
    for step in range(max(lengths)):
        alive = torch.tensor([i for i, length in enumerate(lengths) if length > step])
        offsets = torch.full_like(alive, step + 1)
        journal.sample(alive, offsets, alive + 10, torch.full((len(alive),), logprob), torch.ones(len(alive)).bool())
        fed = torch.tensor([i for i, length in enumerate(lengths) if length > step + 1], dtype=torch.int64)
        if len(fed):
            journal.route(fed, torch.full_like(fed, step + 1), routes.expand(len(fed), 2, 2))
    return journal, prompts


def test_one_long_response_among_short_ones_costs_its_own_tokens_only():
    """Neither while it is written nor packed: a table [responses, longest, layers, k] would hold 18 times as much."""
    lengths = [500, *[8] * 63]
    journal, prompts = played(lengths, -1.0)
    fed = sum(lengths)  # the prompt's token, and all but the last of the response
    assert sum(len(experts) for *_, experts in journal.routes) == fed
    batch = journal.pack(prompts, group_size=1, version=0, tape=Layers())
    tokens = sum(lengths) + len(lengths)
    assert batch.routes.experts.numel() == tokens * 2 * 2 and batch.routes.experts.element_size() == 1
    assert 30 * tokens < 64 * 501 * 2 * 2
    assert int(batch.routes.present.sum()) == fed


def test_entries_stand_at_their_tokens_whatever_the_order_they_came_in():
    journal, prompts = played([3, 1, 2], -0.5)
    batch = journal.pack(prompts, group_size=1, version=7, tape=Layers())
    assert batch.tokens.tolist() == [3, 10, 10, 10, 3, 11, 3, 12, 12]
    assert batch.response_mask.tolist() == [False, True, True, True, False, True, False, True, True]
    assert batch.routes.present.tolist() == [True, True, True, False, True, False, True, True, False]
    assert batch.version == 7 and batch.positions.tolist() == [0, 1, 2]
