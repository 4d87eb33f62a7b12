"""Rewards of a rollout batch: the task's grader on every response, its own failures kept apart from wrong answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from minirl.interfaces import Task, VerifierError
from minirl.types import Prompt, Rewards, RolloutBatch


def grade(task: Task, prompts: Sequence[Prompt], rollouts: RolloutBatch, *, max_error_rate: float) -> Rewards:
    """values[i * G + j] = R(x_i, y_ij), in the order of the rollouts.

    A response on which the verifier fails has no reward (graded False); if more than `max_error_rate` of the batch
    fail, the verifier is broken and the run stops. Any other exception is a fault of ours and is not caught.
    """
    refuse_misalignment(prompts, rollouts)
    values, errors = torch.zeros(len(rollouts)), dict[int, VerifierError]()
    for index, response in enumerate(responses(rollouts)):
        try:
            values[index] = task.grade(prompts[index // rollouts.group_size], response)
        except VerifierError as error:
            errors[index] = error
    refuse_errors(list(errors.values()), len(rollouts), max_error_rate=max_error_rate)
    graded = torch.tensor([index not in errors for index in range(len(rollouts))])
    device = rollouts.tokens.device
    return Rewards(values.to(device), graded.to(device))


def responses(rollouts: RolloutBatch) -> list[list[int]]:
    """Sampled token ids of each response, EOS included if it was sampled."""
    sampled = rollouts.tokens[rollouts.response_mask].cpu()
    return [part.tolist() for part in sampled.split(rollouts.response_lengths.tolist())]


def refuse_misalignment(prompts: Sequence[Prompt], rollouts: RolloutBatch) -> None:
    """Grading a response by another prompt's answer looks like a model that cannot learn."""
    expected = [prompt.position for prompt in prompts for _ in range(rollouts.group_size)]
    if expected != rollouts.positions.tolist():
        raise ValueError(f"rollouts are not the responses of these {len(prompts)} prompts, group after group")


def refuse_errors(errors: Sequence[VerifierError], num_responses: int, *, max_error_rate: float) -> None:
    if len(errors) > max_error_rate * num_responses:
        raise VerifierError(
            f"{len(errors)} of {num_responses} responses could not be graded, more than "
            f"task.max_verifier_error_rate={max_error_rate} of them; the first: {errors[0]}"
        ) from errors[0]
