"""Figures of an evaluation, on an engine whose answers are written down."""

import json
import math
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from test_grading import EOS, EchoTask, batch_of

from minirl.compose import load
from minirl.config import ConfigError
from minirl.evaluate import (
    Evaluator,
    eval_sampling,
    figures,
    figures_of_sets,
    pass_at_k,
    passes,
    refuse_broken_verifier,
    sampled_outcomes,
)
from minirl.examine import told
from minirl.interfaces import VerifierError
from minirl.types import Prompt, Sampling
from minirl.world import FailedElsewhere, World

SAMPLING = Sampling(1.0, 4, EOS, 0, "eval")
PROMPTS = [Prompt(i, (1,) * (i + 1), problem) for i, problem in enumerate([3, 4, 5, 6, 8])]
# how many of four responses repeat the problem
CORRECT = [0, 1, 2, 4, 3]


class WrittenEngine:
    """Response j to prompt p is right iff j < CORRECT[p]; wrong ones are cut off."""

    def generate(self, prompts, sampling, group_size):
        texts = [
            [(p.problem, EOS) if j < CORRECT[p.position] else (0, 0, 0, 0) for j in range(group_size)] for p in prompts
        ]
        return batch_of(prompts, texts, group_size)


def alone(rank=0, size=1, gathered=None):
    class Ranks(World):
        def gather(self, value):
            return [value] if size == 1 else gathered(value)

        def together(self, action):
            return action()

    return Ranks(rank, size, torch.device("cpu"))


def test_figures_against_the_closed_form():
    outcomes = sampled_outcomes(EchoTask(), WrittenEngine(), PROMPTS, SAMPLING, num_samples=4, world=alone())
    found = figures(outcomes)
    means = [count / 4 for count in CORRECT]
    mean = sum(means) / 5
    assert found["eval/avg"] == pytest.approx(mean)
    assert found["eval/se"] == pytest.approx(math.sqrt(sum((x - mean) ** 2 for x in means) / 4 / 5))
    assert found["eval/pass"] == pytest.approx(4 / 5)
    assert found["eval/length"] == pytest.approx((10 * 2 + 10 * 4) / 20)
    assert found["eval/truncated"] == pytest.approx(10 / 20)
    assert found["eval/verifier_errors"] == 0


def test_the_error_of_pass_is_over_problems():
    """Samples of one problem are no new problems: twice the samples of the same outcomes leave the error as it is."""
    outcomes = sampled_outcomes(EchoTask(), WrittenEngine(), PROMPTS, SAMPLING, num_samples=4, world=alone())
    found, doubled = figures(outcomes), figures(torch.cat([outcomes, outcomes], dim=1))
    assert found["eval/pass_se"] == pytest.approx((0.8 * 0.2 / 4) ** 0.5)
    assert found["eval/se"] == doubled["eval/se"] and doubled["eval/avg"] == found["eval/avg"]
    assert passes(outcomes, 1).tolist() == pytest.approx([count / 4 for count in CORRECT])
    assert passes(outcomes, 2).tolist() == pytest.approx([pass_at_k(count, 4, 2) for count in CORRECT])


def test_sets_count_alike_whatever_their_sizes():
    outcomes = sampled_outcomes(EchoTask(), WrittenEngine(), PROMPTS, SAMPLING, num_samples=4, world=alone())
    few, many = outcomes[:2], outcomes[2:]
    found = figures_of_sets({"few": few, "many": many})
    assert found["eval/avg"] == pytest.approx((found["eval_few/avg"] + found["eval_many/avg"]) / 2)
    assert found["eval_few/avg"] == figures(few)["eval/avg"] and found["eval_many/se"] == figures(many)["eval/se"]
    assert found["eval/se"] == pytest.approx((figures(few)["eval/se"] ** 2 + figures(many)["eval/se"] ** 2) ** 0.5 / 2)
    assert figures_of_sets({"held_out": outcomes}) == figures(outcomes), "one set has no name in the rows"


def test_all_sets_are_sampled_together_and_kept_by_name(tmp_path):
    class Sets(EchoTask):
        eos = EOS

        def decode(self, tokens):
            return str(list(tokens))

    class Engine(WrittenEngine):
        version = 3

    sets = {"a": PROMPTS[:3], "b": PROMPTS[3:]}
    evaluator = Evaluator(Sets(), Engine(), sets, SAMPLING, num_samples=4, max_error_rate=0.0, world=alone())

    class Weights:
        version = 3

        def parameters(self):
            pytest.fail("the engine has them already")

    outcomes = evaluator.outcomes(Weights())
    assert {name: part.shape for name, part in outcomes.items()} == {"a": (3, 4, 4), "b": (2, 4, 4)}
    evaluator.save(outcomes, 3, tmp_path / "evaluations" / "3.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "evaluations" / "3.jsonl").read_text().splitlines()]
    assert [row["set"] for row in rows] == ["a"] * 3 + ["b"] * 2
    assert [sum(row["rewards"]) for row in rows] == CORRECT and rows[0]["prompt"] == "[1]"
    with pytest.raises(ConfigError, match=r"eval.num_problems=1: 1 of set held_out; a standard error needs 2"):
        Evaluator.of(
            load(["eval.num_problems=1"]), OneProblem(), model=pytest.fail, rollouts=pytest.fail, world=alone()
        )


def test_no_rank_is_left_without_problems_where_engines_are_shared():
    cfg = load(["eval.num_problems=2", "eval.numerics=null"])
    with pytest.raises(ConfigError, match=r"eval.numerics=null: 2 problems leave some of 3 ranks without any"):
        Evaluator.of(cfg, OneProblem(), model=pytest.fail, rollouts=pytest.fail, world=alone(0, 3))


class OneProblem:
    eos = EOS

    def eval_sets(self, count):
        return {"held_out": PROMPTS[:count]}


def test_intervals_are_of_problems():
    outcomes = sampled_outcomes(EchoTask(), WrittenEngine(), PROMPTS, SAMPLING, num_samples=4, world=alone())
    lines = told({"set": outcomes})
    assert [line.split()[1] for line in lines] == ["avg@4", "pass@1", "pass@2", "pass@4"]
    mean, error = 0.5, figures(outcomes)["eval/se"]
    low, high = (f"{mean + sign * 2.7764 * error:.3f}" for sign in (-1, 1))  # t of 4 degrees of freedom
    assert f"{mean:.4f}  95 % {low} to {high}  (5 problems)" in lines[0]


def test_an_error_counts_zero_and_moves_neither_k_nor_the_names():
    prompts = [*PROMPTS[:3], Prompt(3, (1,), 7)]  # EchoTask cannot judge 7
    found = figures(sampled_outcomes(EchoTask(), WrittenEngine(), prompts, SAMPLING, num_samples=4, world=alone()))
    healthy = figures(
        sampled_outcomes(EchoTask(), WrittenEngine(), PROMPTS[:4], SAMPLING, num_samples=4, world=alone())
    )
    assert found.keys() == healthy.keys()
    assert found["eval/avg"] == pytest.approx((0 + 1 + 2 + 0) / 16)
    assert found["eval/verifier_errors"] == pytest.approx(4 / 16)
    assert healthy["eval/avg"] == pytest.approx((0 + 1 + 2 + 4) / 16)


def test_a_broken_verifier_stops_all_ranks_together():
    outcomes = torch.ones(4, 4, 4)
    outcomes[3, :, 1] = 0
    refuse_broken_verifier(outcomes, max_error_rate=0.25)
    with pytest.raises(VerifierError, match="4 of 16 evaluation responses"):
        refuse_broken_verifier(outcomes, max_error_rate=0.2)


@pytest.mark.parametrize("size", [2, 3, 7])
def test_ranks_share_the_problems_and_see_the_figures_of_one(size):
    single = sampled_outcomes(EchoTask(), WrittenEngine(), PROMPTS, SAMPLING, num_samples=4, world=alone())
    parts = {}
    for rank in range(size):

        def keep(value, rank=rank):
            parts[rank] = value.clone()
            return [value.new_zeros(len(PROMPTS[r::size]), 4, 4) for r in range(size)]

        sampled_outcomes(EchoTask(), WrittenEngine(), PROMPTS, SAMPLING, num_samples=4, world=alone(rank, size, keep))
    assert sum(len(part) for part in parts.values()) == len(PROMPTS)
    everything = alone(size - 1, size, lambda value: [parts[rank] for rank in range(size)])
    shared = sampled_outcomes(EchoTask(), WrittenEngine(), PROMPTS, SAMPLING, num_samples=4, world=everything)
    assert shared.equal(single)


def test_a_rank_without_a_problem_asks_the_engine_as_the_others_do():
    """An engine on several ranks waits for all of them."""
    calls = []

    class Waiting(WrittenEngine):
        def generate(self, prompts, sampling, group_size):
            calls.append([prompt.position for prompt in prompts])
            return super().generate(prompts, sampling, group_size)

    for rank in range(7):
        world = alone(rank, 7, lambda value: [value.new_zeros(len(PROMPTS[r::7]), 4, 4) for r in range(7)])
        sampled_outcomes(EchoTask(), Waiting(), PROMPTS, SAMPLING, num_samples=4, world=world)
    assert calls == [[0], [1], [2], [3], [4], [0], [0]]


def test_an_engine_that_fails_on_another_rank_ends_this_one():
    class Beside(World):
        def gather(self, value):
            return [value, ("IndexError", "lost")]

    with pytest.raises(FailedElsewhere, match="IndexError: rank 1: lost"):
        world = Beside(0, 2, torch.device("cpu"))
        sampled_outcomes(EchoTask(), WrittenEngine(), PROMPTS, SAMPLING, num_samples=4, world=world)


def test_pass_at_k_by_enumeration():
    for n in range(1, 8):
        for c in range(n + 1):
            for k in range(1, n + 1):
                draws = list(combinations([True] * c + [False] * (n - c), k))
                assert pass_at_k(c, n, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    for bad in ((3, 2, 1), (-1, 2, 1), (1, 2, 3), (1, 2, 0)):
        with pytest.raises(ValueError, match="not defined"):
            pass_at_k(*bad)


def test_eval_sampling_inherits_what_is_null():
    cfg = load(["sampling.temperature=0.7", "sampling.max_response_tokens=12"])
    assert eval_sampling(cfg, EOS) == Sampling(0.7, 12, EOS, 0, "eval")
    assert eval_sampling(replace(cfg, seed=5), EOS).seed == 0, "draws are common to all seeds"
    cfg.eval.temperature, cfg.eval.max_response_tokens = 0.0, 20
    assert eval_sampling(cfg, EOS) == Sampling(0.0, 20, EOS, 0, "eval")
    cfg.eval.top_p = 0.95
    assert eval_sampling(cfg, EOS) == Sampling(0.0, 20, EOS, 0, "eval", 0.95)


def test_a_real_evaluation_measures_the_weights_it_is_given():
    """Equal weights give equal figures whatever the version; the engine takes the version of what it measures."""
    from minirl.models.load import build as build_model
    from minirl.tasks.registry import build as build_task

    cfg = load(["model.num_layers=1", "model.hidden_size=32", "eval.num_problems=6", "eval.num_samples=2"])
    task = build_task(cfg.task, cfg.coldstart)

    def model(init_seed):
        return build_model(replace(cfg.model, init_seed=init_seed), vocab_size=task.vocab_size, checkpoint=None)

    class Weights:
        def __init__(self, init_seed, version):
            self.model, self.version = model(init_seed), version

        def parameters(self):
            return iter(self.model.state_dict().items())

    evaluator = Evaluator.of(cfg, task, model=lambda: model(9), rollouts=pytest.fail, world=alone())
    first = evaluator(Weights(0, version=3))
    assert evaluator.engine.version == 3
    other = evaluator(Weights(1, version=4))
    assert evaluator(Weights(0, version=8)) == first and evaluator.engine.version == 8
    assert other["eval/length"] != first["eval/length"]
    assert first["eval/avg"] == 0 and 1 <= first["eval/length"] <= cfg.sampling.max_response_tokens
