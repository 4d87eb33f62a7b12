"""The gradient by enumeration, against autograd of the expected reward of all responses."""

from itertools import product

import pytest
import torch
from small_runs import SMALL

from minirl.algo.algorithm import build
from minirl.compose import load
from minirl.config import ConfigError
from minirl.examine import Restored, restored
from minirl.models.load import build as build_model
from minirl.rescore.exact import enumerated, exact_gradient
from minirl.types import Prompt
from minirl.world import World

LONGEST = 2
CONFIG = [*SMALL, "task.digits=1", f"sampling.max_response_tokens={LONGEST}", "sampling.temperature=0.7"]


@pytest.fixture(scope="module")
def start():
    world = World.join("cpu")
    yield restored(load(CONFIG), None, world)
    world.leave()


def rewarding(start: Restored):
    """A task whose answers of two tokens are right where their sum is even: random weights are never right else."""
    task = start.task

    class Even:
        eos = task.eos

        def grade(self, prompt: Prompt, response: tuple[int, ...]) -> float:
            return float(sum(response) % 2 == 0)

    return Even()


def all_responses(eos: int, vocabulary: int) -> list[tuple[int, ...]]:
    return [(eos,)] + [pair for pair in product(range(vocabulary), repeat=LONGEST) if pair[0] != eos]


def expected_reward(model, start: Restored, prompt: Prompt, task) -> torch.Tensor:
    """sum_y pi(y | x) R(x, y), differentiable, by a plain forward over every response."""
    total = torch.zeros((), dtype=torch.float64)
    for response in all_responses(task.eos, start.task.vocab_size):
        tokens = torch.tensor([[*prompt.tokens, *response]])
        logits = model(input_ids=tokens, use_cache=False).logits[0].double() / 0.7
        places = torch.arange(len(prompt.tokens) - 1, tokens.shape[1] - 1)
        logprobs = logits.log_softmax(-1)[places, tokens[0, places + 1]]
        total = total + logprobs.sum().exp() * task.grade(prompt, response)
    return total


def test_the_gradient_is_that_of_the_expected_reward(start: Restored) -> None:
    task, prompts = rewarding(start), start.task.prompts(0, 2, 0)
    found = exact_gradient(start.policy, task, prompts, build(load(["algo=reinforce"]).algo), longest=LONGEST, floor=0)
    assert found.mass == pytest.approx(1, abs=1e-5)
    assert found.num_responses == 2 * len(all_responses(task.eos, start.task.vocab_size))
    model = build_model(load(CONFIG).model, vocab_size=start.task.vocab_size, checkpoint=None)
    for prompt, gradient in zip(prompts, found.gradients, strict=True):
        grads = torch.autograd.grad(expected_reward(model, start, prompt, task), list(model.parameters()))
        expected = -torch.cat([grad.flatten() for grad in grads]) / len(prompts)
        assert torch.allclose(gradient, expected, rtol=1e-3, atol=1e-7)
        assert float(expected.norm()) > 1e-4


def test_a_floor_leaves_out_what_is_unlikely_and_says_how_much(start: Restored) -> None:
    prompt = start.task.prompts(0, 1, 0)[0]
    whole, part = (
        enumerated(start.policy, prompt, eos=start.task.eos, longest=LONGEST, floor=floor) for floor in (0.0, 2e-3)
    )
    assert 0 < len(part.responses) < len(whole.responses)
    assert part.mass < whole.mass == pytest.approx(1, abs=1e-5)
    assert min(part.logprobs) >= -6.22 and set(part.responses) < set(whole.responses)


def test_a_task_of_long_answers_is_refused(start: Restored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minirl.rescore.exact.MOST_RESPONSES", 100)
    prompt = start.task.prompts(0, 1, 0)[0]
    with pytest.raises(ConfigError, match=r"more than 100 responses to one prompt are likelier than --exact 0"):
        enumerated(start.policy, prompt, eos=start.task.eos, longest=LONGEST, floor=0.0)
