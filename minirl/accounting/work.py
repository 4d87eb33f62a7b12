"""How much one rollout batch is: prompts, responses, tokens, routes. Upper bounds, and what is to be expected."""

from __future__ import annotations

from dataclasses import dataclass

from minirl.accounting.architecture import Architecture
from minirl.config import Config

EXPECTED_SHARE = 0.5  # of sampling.max_response_tokens, where no run has told how long its responses are
PROMPT_TOKENS = {"addition": 8, "chain": 6}  # of other tasks as long as the tenth part of a response
TOKEN_BYTES = 8 + 4 + 4 + 4 + 3  # token, log mu, log pi_old, entropy, three masks


@dataclass(frozen=True)
class Work:
    """Of one rollout batch. tokens: of responses, at most · expected: tokens of a response in the mean · longest: of
    a sequence, prompt included · prompt: its tokens · route_bytes, host_bytes: of the whole batch, at most ·
    num_mini_batches: updates that share it."""

    prompts: int
    responses: int
    num_mini_batches: int
    tokens: int
    expected: float
    prompt: int
    longest: int
    route_bytes: int
    host_bytes: int

    @property
    def tokens_per_mini_batch(self) -> int:
        """At most, prompts included."""
        return self.responses // self.num_mini_batches * self.longest


def work(config: Config, shape: Architecture, *, expected: float | None) -> Work:
    """expected: mean response tokens as measured; None: EXPECTED_SHARE of the limit."""
    limit, prompts = config.sampling.max_response_tokens, config.prompts_per_mini_batch * config.num_mini_batches
    responses = prompts * config.group_size
    prompt = PROMPT_TOKENS.get(config.task.name, max(limit // 10, 1))
    routed = shape.moe_layers * shape.experts_per_token * (1 if shape.num_experts <= 256 else 2)
    tokens = responses * limit
    # prompts have routes too, and the trainer's own choice is kept beside the engine's
    every = responses * (limit + prompt)
    return Work(
        prompts=prompts,
        responses=responses,
        num_mini_batches=config.num_mini_batches,
        tokens=tokens,
        expected=EXPECTED_SHARE * limit if expected is None else expected,
        prompt=prompt,
        longest=limit + prompt,
        route_bytes=tokens * routed,
        host_bytes=every * (TOKEN_BYTES + 2 * routed),
    )
