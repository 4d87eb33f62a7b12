"""Decoding a wave: responses that are sampled side by side, of which only the unfinished ones are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad as padded

from minirl.engine.cache import DecodingCache, survivors
from minirl.engine.journal import Journal
from minirl.engine.sampling import draw, nucleus, response_uniforms, sampled_logprobs
from minirl.types import Prompt, Sampling

# (ids [n, S], position ids [n, S], attention mask [n, cached + S] or None, cache) -> the logits [n, V] after the last
# token, the experts [n * S, L, k] of all tokens (None for a dense model)
Forward = Callable[[Tensor, Tensor, Tensor | None, DecodingCache], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True, slots=True)
class Rows:
    """The unfinished responses of a wave.

    responses [n]: their places in the batch · lengths [n]: tokens so far, prompt included · uniforms
    [n, max_response_tokens] · prompt_mask [n, P] bool: False on the padding to the left of a prompt; None: no padding.
    """

    responses: Tensor
    lengths: Tensor
    uniforms: Tensor
    prompt_mask: Tensor | None

    def keep(self, order: Tensor) -> Rows:
        mask = None if self.prompt_mask is None else self.prompt_mask[order]
        return Rows(self.responses[order], self.lengths[order], self.uniforms[order], mask)

    def attention_mask(self, num_sampled: int) -> Tensor | None:
        """[n, P + num_sampled]: what the newest token may look at."""
        return None if self.prompt_mask is None else padded(self.prompt_mask, (0, num_sampled), value=True)


def decode(
    forward: Forward,
    cache: DecodingCache,
    prompts: Sequence[Prompt],
    responses: Tensor,
    *,
    group_size: int,
    sampling: Sampling,
    pad: int,
    journal: Journal,
) -> None:
    """Samples the given responses to their ends; response b of the batch is sample b % group_size of prompt
    b // group_size. All that is known of them is written to the journal."""
    rows, logits = prefill(forward, cache, prompts, responses, group_size, sampling, pad, journal)
    for step in range(sampling.max_response_tokens):
        logprobs = nucleus(sampled_logprobs(logits, sampling.temperature), sampling.top_p)
        tokens = draw(logprobs, rows.uniforms[:, step])
        chosen = logprobs.gather(-1, tokens[:, None]).squeeze(-1)
        valid = chosen.isfinite()
        # a row without a distribution cannot be continued: it ends here
        tokens = tokens.where(valid, sampling.eos)
        journal.sample(rows.responses, rows.lengths, tokens, chosen.where(valid, 0.0), valid)
        order = survivors(tokens == sampling.eos)
        if len(order) < len(tokens):
            rows, tokens = rows.keep(order), tokens[order]
            cache.keep(order)
        if len(order) == 0:
            return
        if step + 1 < sampling.max_response_tokens:
            mask = rows.attention_mask(step + 1)
            logits, experts = forward(tokens[:, None], rows.lengths[:, None], mask, cache)
            journal.route(rows.responses, rows.lengths, experts)
        rows = replace(rows, lengths=rows.lengths + 1)
    journal.truncate(rows.responses)


def prefill(
    forward: Forward,
    cache: DecodingCache,
    prompts: Sequence[Prompt],
    responses: Tensor,
    group_size: int,
    sampling: Sampling,
    pad: int,
    journal: Journal,
) -> tuple[Rows, Tensor]:
    """One pass over each distinct prompt of the wave, then a row per response; logits [n, V] of its first token."""
    places, row_prompt = (responses // group_size).unique(return_inverse=True)
    distinct = [prompts[place] for place in places.tolist()]
    ids, mask = left_padded([prompt.tokens for prompt in distinct], pad, responses.device)
    positions = (mask.cumsum(-1) - 1).clamp_min_(0)
    whole = bool(mask.all())
    logits, experts = forward(ids, positions, None if whole else mask, cache)
    row, column = mask[row_prompt].nonzero(as_tuple=True)
    source = row_prompt[row]
    known = responses[row], positions[source, column]
    journal.prompt(*known, ids[source, column])
    journal.route(*known, None if experts is None else experts.unflatten(0, ids.shape)[source, column])
    cache.expand(row_prompt)
    samples = zip(row_prompt.tolist(), (responses % group_size).tolist(), strict=True)
    uniforms = response_uniforms(sampling, [(distinct[place].position, sample) for place, sample in samples])
    lengths = mask.sum(-1)[row_prompt]
    rows = Rows(responses, lengths, uniforms.to(responses.device), None if whole else mask[row_prompt])
    return rows, logits[row_prompt]


def left_padded(sequences: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """ids [n, P] that all end in the last column, and the mask [n, P] of the real ones."""
    longest = max(map(len, sequences))
    ids = [[pad] * (longest - len(tokens)) + list(tokens) for tokens in sequences]
    lengths = torch.tensor([len(tokens) for tokens in sequences], device=device)
    mask = torch.arange(longest, device=device) >= longest - lengths[:, None]
    return torch.tensor(ids, device=device), mask
