"""Log-probabilities are fp32 from the engine to the loss: in bf16, -12.3456 would be -12.375, a ratio 3 % off."""

from dataclasses import replace

import numpy as np
import torch

from minirl.engine.journal import Journal
from minirl.engine.responses import Response, joined
from minirl.policy.packing import moved
from minirl.types import OldPolicy, Prompt, Rewards, RolloutBatch, TrainBatch, select, split

VALUES = [-12.3456, -0.000012345, -7.654321]
PROMPTS = [Prompt(0, (2, 3), None), Prompt(1, (4,), None)]
HOST = torch.device("cpu")


def served() -> RolloutBatch:
    responses = [Response([5, 6, 1], VALUES, False, None, None) for _ in range(4)]
    return joined(PROMPTS, responses, group_size=2, version=0, eos=1, routers=None, device=HOST)


def sampled() -> RolloutBatch:
    journal = Journal(4, HOST)
    for response in range(4):
        one = torch.tensor([response])
        begin = len(PROMPTS[response // 2].tokens)
        for offset, token in enumerate(PROMPTS[response // 2].tokens):
            journal.prompt(one, torch.tensor([offset]), torch.tensor([token]))
        for step, value in enumerate(VALUES):
            logprob = torch.tensor([value], dtype=torch.float32)
            journal.sample(one, torch.tensor([begin + step]), torch.tensor([5]), logprob, torch.tensor([True]))
    return journal.pack(PROMPTS, group_size=2, version=0, tape=None)


def assert_kept(logprobs: torch.Tensor, mask: torch.Tensor) -> None:
    assert logprobs.dtype == torch.float32
    expected = np.tile(VALUES, int(mask.sum()) // len(VALUES))
    np.testing.assert_allclose(logprobs[mask].double().numpy(), expected, rtol=1e-6, atol=1e-11)


def test_engines_report_fp32():
    for batch in (served(), sampled()):
        assert_kept(batch.rollout_logprobs, batch.response_mask)


def test_they_stay_so_through_every_cut_and_move():
    rollouts = served()
    size, mask = len(rollouts), rollouts.response_mask
    old = OldPolicy(rollouts.rollout_logprobs.clone(), torch.zeros_like(rollouts.rollout_logprobs), None)
    rewards = Rewards(torch.zeros(size), torch.ones(size, dtype=torch.bool))
    batch = TrainBatch(rollouts, rewards, torch.zeros(size), old, accepted=mask, counted=mask, coefficients=None)
    parts = [*split(batch, 2), select(batch, torch.tensor([3, 0])), moved(batch, HOST), replace(batch, accepted=~mask)]
    for part in parts:
        assert_kept(part.rollouts.rollout_logprobs, part.rollouts.response_mask)
        assert_kept(part.old.logprobs, part.rollouts.response_mask)
