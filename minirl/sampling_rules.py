"""Rules of how responses are drawn, in training and in evaluations, and of the errors that grading them may make."""

from __future__ import annotations

from collections.abc import Iterator

from minirl.config import Config


def sampling_problems(config: Config) -> Iterator[str]:
    """One line per broken rule."""
    sampling = config.sampling
    if sampling.temperature <= 0:
        yield f"sampling.temperature={sampling.temperature}: training responses are sampled, expected more than 0"
    if sampling.top_p != 1 or sampling.top_k != 0:
        yield (
            f"sampling.top_p={sampling.top_p} sampling.top_k={sampling.top_k}: training responses are drawn from the "
            "full distribution, because the trainer's log-probabilities are of it; use top_p=1.0 top_k=0"
        )
    if config.eval.temperature is not None and config.eval.temperature < 0:
        yield f"eval.temperature={config.eval.temperature}: expected at least 0 (greedy), or null for sampling's"
    if config.eval.top_p is not None and not 0 < config.eval.top_p <= 1:
        yield f"eval.top_p={config.eval.top_p}: expected a share above 0 and up to 1, or null for the full distribution"
    if config.eval.max_response_tokens is not None and config.eval.max_response_tokens < 1:
        yield f"eval.max_response_tokens={config.eval.max_response_tokens}: expected at least 1, or null for sampling's"
    if not 0 <= config.task.max_verifier_error_rate <= 1:
        yield f"task.max_verifier_error_rate={config.task.max_verifier_error_rate}: expected a share from 0 to 1"
