import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
import torch

from minirl.grading import grade, responses
from minirl.interfaces import VerifierError
from minirl.types import Prompt, RolloutBatch
from minirl.world import FailedElsewhere, World

EOS = 9
ALONE = World(0, 1, torch.device("cpu"))


class EchoTask:
    """Rewards a response that repeats the problem; fails to judge the problem 7."""

    num_graders = 1

    def grade(self, prompt, response):
        if prompt.problem == 7:
            raise VerifierError("seven cannot be judged")
        return float(list(response) == [prompt.problem, EOS])


def batch_of(prompts, texts, group_size):
    """Rollouts of the given response tokens, one list per prompt."""
    sequences = [(p, list(r)) for p, group in zip(prompts, texts, strict=True) for r in group]
    tokens = torch.tensor([t for p, r in sequences for t in [*p.tokens, *r]])
    mask = torch.tensor([flag for p, r in sequences for flag in [False] * len(p.tokens) + [True] * len(r)])
    lengths = torch.tensor([len(p.tokens) + len(r) for p, r in sequences])
    return RolloutBatch(
        tokens=tokens,
        cu_seqlens=torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
        response_mask=mask,
        rollout_logprobs=torch.zeros(tokens.shape),
        truncated=torch.tensor([r[-1] != EOS for _, r in sequences]),
        valid=torch.ones(len(sequences), dtype=torch.bool),
        positions=torch.tensor([p.position for p, _ in sequences]),
        routes=None,
        group_size=group_size,
        version=0,
    )


PROMPTS = [Prompt(10, (1, 2, 3), 4), Prompt(11, (2,), 5), Prompt(12, (3, 3), 7)]
TEXTS = [[(4, EOS), (5, EOS)], [(5,), (5, EOS)], [(7, EOS), (7, EOS)]]
ROLLOUTS = batch_of(PROMPTS, TEXTS, 2)


def test_rewards_stand_at_their_response():
    rewards = grade(EchoTask(), PROMPTS, ROLLOUTS, max_error_rate=0.5, world=ALONE)
    assert rewards.values.tolist() == [1, 0, 0, 1, 0, 0]
    assert rewards.graded.tolist() == [True, True, True, True, False, False]
    assert responses(ROLLOUTS) == [list(r) for group in TEXTS for r in group]


def test_the_same_from_threads_and_asyncio():
    expected = grade(EchoTask(), PROMPTS, ROLLOUTS, max_error_rate=0.5, world=ALONE)
    work = partial(grade, EchoTask(), PROMPTS, ROLLOUTS, max_error_rate=0.5, world=ALONE)
    with ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(work).result()

    async def one():
        return work()

    for found in (elsewhere, asyncio.run(one())):
        assert found.values.equal(expected.values) and found.graded.equal(expected.graded)


@pytest.mark.parametrize(("limit", "stops"), [(0.34, False), (1 / 3, False), (0.3, True), (0.0, True)])
def test_a_broken_verifier_stops_the_run(limit, stops):
    if not stops:
        assert grade(EchoTask(), PROMPTS, ROLLOUTS, max_error_rate=limit, world=ALONE).graded.sum() == 4
        return
    with pytest.raises(
        VerifierError, match=r"2 of 6 responses .*task.max_verifier_error_rate=.*seven cannot be judged"
    ):
        grade(EchoTask(), PROMPTS, ROLLOUTS, max_error_rate=limit, world=ALONE)


def beside(errors, responses):
    """The world of a rank beside which another one counts this many errors in this many responses."""

    class Ranks(World):
        def sum(self, tensor):
            return tensor + torch.tensor([errors, responses])

        def together(self, action):
            return action()

    return Ranks(0, 2, torch.device("cpu"))


@pytest.mark.parametrize(("limit", "stops"), [(0.25, False), (0.2, True)])
def test_all_ranks_stop_together(limit, stops):
    """Rank a has 2 errors in 2 responses, rank b none in 6: 2 of 8, whoever is asked."""
    spoilt, sound = PROMPTS[2:], [replace(PROMPTS[0], position=i) for i in range(3)]
    ranks = {
        "seven cannot be judged": (spoilt, batch_of(spoilt, TEXTS[2:], 2), beside(0, 6)),
        "another rank": (sound, batch_of(sound, [TEXTS[0]] * 3, 2), beside(2, 2)),
    }
    for told, (prompts, rollouts, world) in ranks.items():
        if not stops:
            grade(EchoTask(), prompts, rollouts, max_error_rate=limit, world=world)
            continue
        with pytest.raises(VerifierError, match=rf"2 of 8 responses could not be graded.*{told}"):
            grade(EchoTask(), prompts, rollouts, max_error_rate=limit, world=world)


def test_other_errors_are_ours_and_are_not_turned_into_rewards():
    class Faulty:
        num_graders = 2

        def grade(self, prompt, response):
            raise KeyError("a fault of the program")

    with pytest.raises(KeyError):
        grade(Faulty(), PROMPTS, ROLLOUTS, max_error_rate=1.0, world=ALONE)


def test_a_fault_on_another_rank_ends_this_one():
    class Beside(World):
        def gather(self, value):
            return [value, ("KeyError", "a fault of the program")]

    with pytest.raises(FailedElsewhere, match="KeyError: rank 1: a fault"):
        grade(EchoTask(), PROMPTS, ROLLOUTS, max_error_rate=1.0, world=Beside(0, 2, torch.device("cpu")))


def test_rollouts_of_other_prompts_are_refused():
    for wrong in (PROMPTS[::-1], PROMPTS[:2], [PROMPTS[0], PROMPTS[0], PROMPTS[2]]):
        with pytest.raises(ValueError, match="not the responses of these"):
            grade(EchoTask(), wrong, ROLLOUTS, max_error_rate=1.0, world=ALONE)
