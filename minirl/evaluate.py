"""avg@k and pass@k on held-out problems, by one engine and one set of draws for all compared arms."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import torch
from torch import Tensor
from transformers import PreTrainedModel

from minirl.config import Config, ConfigError
from minirl.engine.torch_engine import TorchEngine
from minirl.grading import graded
from minirl.interfaces import Engine, Policy, Task, VerifierError
from minirl.types import Prompt, Sampling
from minirl.world import World

# draws of an evaluation are common to all seeds and arms: differences between runs are not differences in luck
EVAL_SEED = 0


class Evaluator:
    """Measures a policy: its weights in an engine of `eval.numerics`, routing free, on the first eval problems.

    model: an instance of its own, in which the policy's weights are put at each evaluation.
    """

    def __init__(self, cfg: Config, task: Task, model: PreTrainedModel, world: World) -> None:
        if cfg.eval.num_problems < 2:
            raise ConfigError(f"eval.num_problems={cfg.eval.num_problems}: a standard error needs at least 2")
        self.task, self.world = task, world
        self.prompts = task.eval_prompts(cfg.eval.num_problems)
        self.num_samples = cfg.eval.num_samples
        self.max_error_rate = cfg.task.max_verifier_error_rate
        self.sampling = eval_sampling(cfg, task.eos)
        self.engine = TorchEngine(
            model,
            numerics=cfg.eval.numerics,
            max_sequences=cfg.engine.max_sequences,
            pad=task.pad,
            device=world.device,
        )

    def __call__(self, policy: Policy) -> dict[str, float]:
        self.engine.load_parameters(policy.parameters(), policy.version)
        outcomes = sampled_outcomes(
            self.task, self.engine, self.prompts, self.sampling, num_samples=self.num_samples, world=self.world
        )
        refuse_broken_verifier(outcomes, max_error_rate=self.max_error_rate)
        return figures(outcomes)


def eval_sampling(cfg: Config, eos: int) -> Sampling:
    """The block `eval`, what is null there taken from `sampling`."""
    temperature, limit = cfg.eval.temperature, cfg.eval.max_response_tokens
    return Sampling(
        temperature=cfg.sampling.temperature if temperature is None else temperature,
        max_response_tokens=cfg.sampling.max_response_tokens if limit is None else limit,
        eos=eos,
        seed=EVAL_SEED,
        purpose="eval",
    )


def sampled_outcomes(
    task: Task, engine: Engine, prompts: Sequence[Prompt], sampling: Sampling, *, num_samples: int, world: World
) -> Tensor:
    """[P, k, 4] float64, the same on all ranks: reward (0 where not graded), graded, length, truncated.

    Rank r samples problems r, r + size, ...; a response's draws do not depend on what is sampled beside it, so the
    outcomes do not depend on the number of ranks.
    """
    mine = prompts[world.rank :: world.size]
    outcomes = torch.zeros(len(prompts), num_samples, 4, dtype=torch.float64)
    part = outcomes[: len(mine)]
    if mine:
        rollouts = engine.generate(mine, sampling, num_samples)
        rewards, _ = graded(task, mine, rollouts)  # errors are judged over the whole evaluation
        columns = (rewards.values, rewards.graded, rollouts.response_lengths, rollouts.truncated)
        part = torch.stack([column.double().cpu() for column in columns], dim=-1).view(len(mine), num_samples, 4)
    for rank, found in enumerate(world.gather(part)):
        outcomes[rank :: world.size] = found
    return outcomes


def figures(outcomes: Tensor) -> dict[str, float]:
    """eval/avg = mean over problems of the mean reward of k samples (avg@k, k always the configured one: what could
    not be graded counts 0); eval/se = its standard error over problems; eval/pass = mean of pass@k, where a reward of
    1 is correct; eval/length = mean response tokens; eval/truncated and eval/verifier_errors = shares of responses."""
    num_problems, num_samples = outcomes.shape[:2]
    rewards, graded, lengths, truncated = outcomes.unbind(-1)
    by_problem = rewards.mean(1)
    solved = (rewards >= 1.0).sum(1).tolist()
    return {
        "eval/avg": by_problem.mean().item(),
        "eval/se": (by_problem.std(correction=1) / num_problems**0.5).item(),
        "eval/pass": sum(pass_at_k(count, num_samples, num_samples) for count in solved) / num_problems,
        "eval/length": lengths.mean().item(),
        "eval/truncated": truncated.mean().item(),
        "eval/verifier_errors": 1.0 - graded.mean().item(),
    }


def pass_at_k(num_correct: int, num_samples: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): the chance that k of n samples, drawn without replacement, hold one of the c correct.
    Unbiased for the chance that k fresh samples do (Chen et al., arXiv 2107.03374, eq 1)."""
    if not 0 <= num_correct <= num_samples or not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} of {num_correct} correct among {num_samples} samples is not defined")
    return 1.0 - comb(num_samples - num_correct, k) / comb(num_samples, k)


def refuse_broken_verifier(outcomes: Tensor, *, max_error_rate: float) -> None:
    """All ranks see all outcomes, so all stop together."""
    failed = int((outcomes[..., 1] == 0).sum())
    if failed > max_error_rate * outcomes[..., 1].numel():
        raise VerifierError(
            f"{failed} of {outcomes[..., 1].numel()} evaluation responses could not be graded, more than "
            f"task.max_verifier_error_rate={max_error_rate} of them"
        )
