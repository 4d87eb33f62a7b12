import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from minirl.config import ColdstartConfig, ConfigError, TaskConfig
from minirl.interfaces import VerifierError
from minirl.tasks import registry
from minirl.tasks.reasoning_gym import ReasoningGym
from minirl.tasks.splits import Split, split_of


def build(dataset, style="answer", wrong_step_rate=0.0, **options):
    task = TaskConfig(
        name="reasoning_gym", digits=None, min_steps=None, max_steps=None, dataset=dataset, options=options,
        max_verifier_error_rate=0.05
    )  # fmt: skip
    cold = ColdstartConfig(
        style=style, wrong_step_rate=wrong_step_rate, checkpoint=None, batch_size=8, max_steps=1, min_steps=1,
        lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, warmup_steps=1, weight_decay=0.0, max_norm=1.0,
        target_accuracy=0.4, eval_every=1, eval_problems=8, seed=0,
    )  # fmt: skip
    return registry.build(task, cold)


def graded(task, prompt, answer):
    return task.grade(prompt, task.encode(answer + task.vocabulary.eos))


@pytest.mark.parametrize("dataset", ["chain_sum", "base_conversion", "spell_backward", "word_sorting", "word_ladder"])
def test_gold_answers_are_right_and_others_are_not(dataset):
    pytest.importorskip("reasoning_gym")
    task = build(dataset)
    for prompt in task.prompts(0, 10, seed=0):
        assert graded(task, prompt, prompt.problem["answer"]) == 1.0
        assert graded(task, prompt, "~") < 1.0
        assert task.grade(prompt, task.encode(prompt.problem["answer"])) == 0.0, "cut off before EOS"
        assert task.decode(prompt.tokens) == task.vocabulary.bos + prompt.problem["question"]


def test_prompts_splits_and_demonstrations():
    pytest.importorskip("reasoning_gym")
    task = build("chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=2)
    whole = task.prompts(5, 20, seed=0)
    assert whole == task.prompts(5, 8, seed=0) + task.prompts(13, 12, seed=0)
    train = {prompt.problem["question"] for prompt in whole}
    evaluation = {prompt.problem["question"] for prompt in task.eval_prompts(40)}
    assert len(evaluation) == 40
    assert all(split_of(question) is Split.train for question in train)
    assert all(split_of(question) is Split.eval for question in evaluation)
    for prompt, response in task.demonstrations(0, 20, seed=0):
        question, answer = task.decode(prompt)[1:], task.decode(response)[:-1]
        assert split_of(question) is Split.coldstart
        expression = question.rpartition(": ")[2].removesuffix(" =")
        assert int(answer) == eval(expression)


def test_options_reach_the_dataset():
    pytest.importorskip("reasoning_gym")
    task = build("chain_sum", min_terms=3, max_terms=3, min_digits=4, max_digits=4)
    for prompt in task.prompts(0, 5, seed=0):
        assert prompt.problem["metadata"]["num_terms"] == 3 and prompt.problem["metadata"]["num_digits"] == 4


@pytest.mark.parametrize("dataset", ["chain_sum", "spell_backward", "word_ladder", "acre"])
def test_a_problem_is_the_first_of_the_dataset_of_its_seed(dataset):
    """Both kinds of dataset: those that draw problem i from seed + i, and those that tabulate."""
    gym = pytest.importorskip("reasoning_gym")
    source = build(dataset).source
    for seed in (3, 1_000_003):
        expected = gym.create_dataset(dataset, seed=seed, size=1)[0]
        assert {key: source.entry(seed)[key] for key in ("question", "answer")} == {
            key: expected[key] for key in ("question", "answer")
        }


def test_threads_and_asyncio_grade_alike():
    pytest.importorskip("reasoning_gym")
    task = build("chain_sum")
    prompts = task.prompts(0, 6, seed=0)
    answers = [p.problem["answer"] if i % 2 else "0.5" for i, p in enumerate(prompts)]
    expected = [graded(task, *pair) for pair in zip(prompts, answers, strict=True)]
    assert 1.0 in expected and min(expected) < 1.0
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda pair: graded(task, *pair), zip(prompts, answers, strict=True))) == expected

    async def one(pair):
        return graded(task, *pair)

    async def everything():
        return await asyncio.gather(*(one(pair) for pair in zip(prompts, answers, strict=True)))

    assert asyncio.run(everything()) == expected


def test_bad_names_and_options_are_said():
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ConfigError, match=r"task.dataset=chain_sums .*; did you mean chain_sum"):
        build("chain_sums")
    with pytest.raises(ConfigError, match=r"min_term.* do not fit chain_sum .*min_terms"):
        build("chain_sum", min_term=2)
    with pytest.raises(ConfigError, match="do not fit chain_sum"):
        build("chain_sum", min_terms=-2)
    with pytest.raises(ConfigError, match=r"task\.dataset is null"):
        build(None)
    with pytest.raises(ConfigError, match="wrong_step_rate"):
        build("chain_sum", wrong_step_rate=0.1)
    with pytest.raises(ConfigError, match=r"coldstart.style=reversed is unknown; expected answer"):
        build("chain_sum", style="reversed")
    with pytest.raises(ConfigError, match="printable ASCII"):
        build("simple_geometry").prompts(0, 1, seed=0)
    with pytest.raises(ConfigError, match="no gold answers"):
        build("rush_hour").demonstrations(0, 1, seed=0)


def test_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(ConfigError, match=r"pip install minirl\[tasks\]"):
        build("chain_sum")


@pytest.mark.parametrize("fault", [lambda answer, entry: 1 / 0, lambda answer, entry: float("nan"), lambda a, e: None])
def test_a_failing_verifier_is_no_reward(fault):
    source = ReasoningGym("faulty", lambda seed: {"question": "?", "answer": "!"}, fault)
    with pytest.raises(VerifierError, match="faulty on 'x'"):
        source.score({"question": "?", "answer": "!"}, "x")
