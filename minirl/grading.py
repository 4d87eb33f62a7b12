"""Rewards of a rollout batch: the task's grader on every response, its own failures kept apart from wrong answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from minirl.interfaces import Task, VerifierError
from minirl.types import Prompt, Rewards, RolloutBatch
from minirl.world import World


def grade(
    task: Task, prompts: Sequence[Prompt], rollouts: RolloutBatch, *, max_error_rate: float, world: World
) -> Rewards:
    """The rewards of this rank's rollouts; if the verifier fails on more than `max_error_rate` of the responses of all
    ranks, it is broken and the run stops."""
    rewards, errors = world.together(lambda: graded(task, prompts, rollouts))
    refuse_errors(errors, len(rollouts), max_error_rate=max_error_rate, world=world)
    return rewards


def graded(task: Task, prompts: Sequence[Prompt], rollouts: RolloutBatch) -> tuple[Rewards, list[VerifierError]]:
    """values[i * G + j] = R(x_i, y_ij), in the order of the rollouts; and the failures of the verifier.

    A response on which the verifier fails has no reward (graded False). Any other exception is a fault of ours and is
    not caught.
    """
    refuse_misalignment(prompts, rollouts)
    asked = [prompt for prompt in prompts for _ in range(rollouts.group_size)]
    verdicts = list(judged(task, asked, responses(rollouts)))
    errors = [verdict for verdict in verdicts if isinstance(verdict, VerifierError)]
    values = torch.tensor([0.0 if isinstance(verdict, VerifierError) else verdict for verdict in verdicts])
    sound = torch.tensor([not isinstance(verdict, VerifierError) for verdict in verdicts])
    device = rollouts.tokens.device
    return Rewards(values.to(device), sound.to(device)), errors


def judged(
    task: Task, prompts: Sequence[Prompt], responses: Sequence[Sequence[int]]
) -> Iterator[float | VerifierError]:
    """Response by response its reward, or why there is none; as many at once as the task's verifiers are."""

    def verdict(prompt: Prompt, response: Sequence[int]) -> float | VerifierError:
        try:
            return task.grade(prompt, response)
        except VerifierError as error:
            return error

    if task.num_graders == 1:
        yield from map(verdict, prompts, responses)
        return
    with ThreadPoolExecutor(task.num_graders) as pool:
        yield from pool.map(verdict, prompts, responses)


def responses(rollouts: RolloutBatch) -> list[list[int]]:
    """Sampled token ids of each response, EOS included if it was sampled."""
    sampled = rollouts.tokens[rollouts.response_mask].cpu()
    return [part.tolist() for part in sampled.split(rollouts.response_lengths.tolist())]


def refuse_misalignment(prompts: Sequence[Prompt], rollouts: RolloutBatch) -> None:
    """Grading a response by another prompt's answer looks like a model that cannot learn."""
    expected = [prompt.position for prompt in prompts for _ in range(rollouts.group_size)]
    if expected != rollouts.positions.tolist():
        raise ValueError(f"rollouts are not the responses of these {len(prompts)} prompts, group after group")


def refuse_errors(errors: Sequence[VerifierError], num_responses: int, *, max_error_rate: float, world: World) -> None:
    """All ranks count all errors, so all stop together: none is left waiting for a rank that has stopped alone."""
    failed, total = world.sum(torch.tensor([len(errors), num_responses])).tolist()
    if failed > max_error_rate * total:
        first = errors[0] if errors else None
        raise VerifierError(
            f"{failed} of {total} responses could not be graded, more than "
            f"task.max_verifier_error_rate={max_error_rate} of them; the first: {first or 'on another rank'}"
        ) from first
