"""avg@k and pass@k on held-out problems, by one engine and one set of draws for all compared arms."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from minirl.config import Config, ConfigError
from minirl.engine.torch_engine import TorchEngine
from minirl.grading import graded
from minirl.interfaces import Engine, Policy, Task, VerifierError
from minirl.record import write_atomically
from minirl.types import Prompt, Sampling
from minirl.world import World

# draws of an evaluation are common to all seeds and arms: differences between runs are not differences in luck
EVAL_SEED = 0


TABLES = "evaluations"  # folder of a run: one table per evaluation, a line per problem


@dataclass(frozen=True)
class Evaluator:
    """Measures a policy: its weights in `engine`, routing free, on the first problems of each evaluation set."""

    task: Task
    engine: Engine
    sets: Mapping[str, Sequence[Prompt]]
    sampling: Sampling
    num_samples: int
    max_error_rate: float
    world: World

    @classmethod
    def of(
        cls,
        cfg: Config,
        task: Task,
        *,
        model: Callable[[], PreTrainedModel],
        rollouts: Callable[[], Engine],
        world: World,
    ) -> Evaluator:
        """model: makes an instance of its own, in which the policy's weights are put at each evaluation. rollouts: the
        engine of the rollouts, taken where eval.numerics is null."""
        sets = task.eval_sets(cfg.eval.num_problems)
        for name, part in sets.items():
            if len(part) < 2:
                raise ConfigError(
                    f"eval.num_problems={cfg.eval.num_problems}: {len(part)} of set {name}; a standard error needs 2"
                )
        number = sum(map(len, sets.values()))
        if cfg.eval.numerics is None and number < world.size:
            raise ConfigError(
                f"eval.num_problems={cfg.eval.num_problems} eval.numerics=null: {number} problems leave some of "
                f"{world.size} ranks without any, and their engines wait for one another; use {world.size} or more"
            )
        return cls(
            task=task,
            engine=rollouts() if cfg.eval.numerics is None else own_engine(cfg, task, model(), world),
            sets=sets,
            sampling=eval_sampling(cfg, task.eos),
            num_samples=cfg.eval.num_samples,
            max_error_rate=cfg.task.max_verifier_error_rate,
            world=world,
        )

    def __call__(self, policy: Policy) -> dict[str, float]:
        return figures_of_sets(self.outcomes(policy))

    def outcomes(self, policy: Policy) -> dict[str, Tensor]:
        """[P, k, 4] of each set (see `sampled_outcomes`), the same on all ranks; all sets are sampled together."""
        if self.engine.version != policy.version:
            self.engine.load_parameters(policy.parameters(), policy.version)
        prompts = [prompt for part in self.sets.values() for prompt in part]
        outcomes = sampled_outcomes(
            self.task, self.engine, prompts, self.sampling, num_samples=self.num_samples, world=self.world
        )
        refuse_broken_verifier(outcomes, max_error_rate=self.max_error_rate)
        parts = outcomes.split([len(part) for part in self.sets.values()])
        return dict(zip(self.sets, parts, strict=True))

    def save(self, outcomes: Mapping[str, Tensor], version: int, path: Path) -> None:
        """A JSON line per problem: its set, place and text, and the outcome of each of the k samples; on rank 0."""
        if self.world.rank != 0:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            {"version": version, "set": name, "position": prompt.position, "prompt": self.task.decode(prompt.tokens)}
            | dict(zip(COLUMNS, outcome.T.tolist(), strict=True))
            for name, part in self.sets.items()
            for prompt, outcome in zip(part, outcomes[name], strict=True)
        ]
        write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


@dataclass(frozen=True)
class RecordedEvaluator:
    """An evaluator whose tables are kept in a run's folder, one per version."""

    evaluator: Evaluator
    folder: Path

    def __call__(self, policy: Policy) -> dict[str, float]:
        outcomes = self.evaluator.outcomes(policy)
        self.evaluator.save(outcomes, policy.version, self.folder / TABLES / f"{policy.version}.jsonl")
        return figures_of_sets(outcomes)


def own_engine(cfg: Config, task: Task, model: PreTrainedModel, world: World) -> TorchEngine:
    """An engine of `eval.numerics`, the same for all compared arms."""
    assert cfg.eval.numerics is not None
    return TorchEngine(
        model,
        numerics=cfg.eval.numerics,
        max_sequences=cfg.engine.max_sequences,
        pad=task.pad,
        device=world.device,
    )


def eval_sampling(cfg: Config, eos: int) -> Sampling:
    """The block `eval`, what is null there taken from `sampling`."""
    temperature, limit = cfg.eval.temperature, cfg.eval.max_response_tokens
    return Sampling(
        temperature=cfg.sampling.temperature if temperature is None else temperature,
        max_response_tokens=cfg.sampling.max_response_tokens if limit is None else limit,
        eos=eos,
        seed=EVAL_SEED,
        purpose="eval",
        top_p=1.0 if cfg.eval.top_p is None else cfg.eval.top_p,
    )


COLUMNS = ("rewards", "graded", "lengths", "truncated")  # of an outcome


def sampled_outcomes(
    task: Task, engine: Engine, prompts: Sequence[Prompt], sampling: Sampling, *, num_samples: int, world: World
) -> Tensor:
    """[P, k, 4] float64, the same on all ranks: reward (0 where not graded), graded, length, truncated.

    Rank r samples problems r, r + size, ...; a response's draws do not depend on what is sampled beside it, so the
    outcomes do not depend on the number of ranks.
    """
    mine = prompts[world.rank :: world.size]
    asked = mine or prompts[:1]  # for nothing, where there are fewer problems than ranks: an engine is asked by all
    outcomes = torch.zeros(len(prompts), num_samples, 4, dtype=torch.float64)

    def part() -> Tensor:
        rollouts = engine.generate(asked, sampling, num_samples)
        rewards, _ = graded(task, asked, rollouts)  # errors are judged over the whole evaluation
        columns = (rewards.values, rewards.graded, rollouts.response_lengths, rollouts.truncated)
        found = torch.stack([column.double().cpu() for column in columns], dim=-1)
        return found.view(len(asked), num_samples, 4)[: len(mine)]

    for rank, found in enumerate(world.gather(world.together(part))):
        outcomes[rank :: world.size] = found
    return outcomes


def figures(outcomes: Tensor) -> dict[str, float]:
    """eval/avg = mean over problems of the mean reward of k samples (avg@k, k always the configured one: what could
    not be graded counts 0); eval/se = its standard error, over problems: samples of one problem are no new problems;
    eval/pass = mean of pass@k, where a reward of 1 is correct, and eval/pass_se its standard error; eval/length = mean
    response tokens; eval/truncated and eval/verifier_errors = shares of responses. k is eval.num_samples.

    With several evaluation sets (task.eval_sets) each has these figures as eval_SET/*, and eval/* is the mean over
    sets, whatever their sizes, with standard errors sqrt(sum of squares) / number of sets."""
    rewards, graded, lengths, truncated = outcomes.unbind(-1)
    average, error = mean_and_error(rewards.mean(1))
    passed, pass_error = mean_and_error(passes(outcomes, outcomes.shape[1]))
    return {
        "eval/avg": average,
        "eval/se": error,
        "eval/pass": passed,
        "eval/pass_se": pass_error,
        "eval/length": lengths.mean().item(),
        "eval/truncated": truncated.mean().item(),
        "eval/verifier_errors": 1.0 - graded.mean().item(),
    }


def figures_of_sets(outcomes: Mapping[str, Tensor]) -> dict[str, float]:
    """The figures of all sets together and, where there are several, of each (see `figures`)."""
    single = {name: figures(part) for name, part in outcomes.items()}
    if len(single) == 1:
        return next(iter(single.values()))
    pooled = {key: over_sets(key, [part[key] for part in single.values()]) for key in next(iter(single.values()))}
    named = {
        key.replace("eval/", f"eval_{name}/"): value for name, part in single.items() for key, value in part.items()
    }
    return pooled | named


def over_sets(key: str, values: Sequence[float]) -> float:
    """The mean over sets of a figure, or the standard error of such a mean: sets are independent."""
    if key.endswith("se"):
        return sum(value**2 for value in values) ** 0.5 / len(values)
    return sum(values) / len(values)


def mean_and_error(by_problem: Tensor) -> tuple[float, float]:
    """The mean over problems [P] and its standard error."""
    return by_problem.mean().item(), (by_problem.std(correction=1) / len(by_problem) ** 0.5).item()


def passes(outcomes: Tensor, k: int) -> Tensor:
    """[P] pass@k of each problem, from all its samples."""
    num_samples = outcomes.shape[1]
    solved = (outcomes[..., 0] >= 1.0).sum(1).tolist()
    return torch.tensor([pass_at_k(count, num_samples, k) for count in solved], dtype=torch.float64)


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
