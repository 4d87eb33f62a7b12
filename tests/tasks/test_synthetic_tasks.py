import dataclasses
from itertools import product

import pytest

from minirl.config import ColdstartConfig, ConfigError, TaskConfig
from minirl.tasks import registry
from minirl.tasks.splits import Split, split_of
from minirl.tasks.vocabulary import Vocabulary


def coldstart(style, wrong_step_rate=0.0):
    return ColdstartConfig(
        style=style, wrong_step_rate=wrong_step_rate, checkpoint=None, batch_size=8, max_steps=1, min_steps=1,
        lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, warmup_steps=1, weight_decay=0.0, max_norm=1.0,
        target_accuracy=0.4, eval_every=1, eval_problems=8, seed=0,
    )  # fmt: skip


def task_config(name, **keys):
    empty = {"digits": None, "min_steps": None, "max_steps": None, "dataset": None, "options": {}}
    return TaskConfig(name=name, **(empty | keys), max_verifier_error_rate=0.05)


def addition(style="reversed", wrong_step_rate=0.0, digits=3):
    return registry.build(task_config("addition", digits=digits), coldstart(style, wrong_step_rate))


def chain(style="count", wrong_step_rate=0.0, digits=3, min_steps=4, max_steps=16):
    keys = {"digits": digits, "min_steps": min_steps, "max_steps": max_steps}
    return registry.build(task_config("chain", **keys), coldstart(style, wrong_step_rate))


TASKS = {
    "addition reversed": addition,
    "addition carry": lambda **keys: addition("carry", **keys),
    "chain count": chain,
    "chain plain": lambda **keys: chain("plain", **keys),
}
every_task = pytest.mark.parametrize("make", TASKS.values(), ids=TASKS.keys())


def graded(task, problem, answer):
    """The reward of a response text in which $ stands for EOS."""
    [prompt] = [task._prompt(0, problem)]
    return task.grade(prompt, task.encode(answer))


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("3080#0803$", 1.0),
        ("7+6+0=13,1+8+1=10,3+4+1=08#0803$", 1.0),
        ("#0803$", 1.0),  # only the answer is graded, not the way to it
        ("9999#0803$", 1.0),
        ("3080#0803", 0.0),  # cut off: no EOS
        ("3080#0804$", 0.0),
        ("3080#803$", 0.0),  # not padded
        ("3080#00803$", 0.0),
        ("3080#0803#0803$", 0.0),  # two answers are no answer
        ("3080#0804#0803$", 0.0),
        ("3080#0803_$", 0.0),  # padding is not air
        ("3080#0803=$", 0.0),
        ("0803$", 0.0),  # no mark
        ("$", 0.0),
        ("", 0.0),
        ("3080#$", 0.0),
        ("3080#0803$0804$", 1.0),  # a response ends at its first EOS
    ],
)
def test_addition_grades_by_hand(answer, reward):
    assert graded(addition(), (317, 486), answer) == reward


def test_addition_prompt_and_demonstrations_by_hand():
    for style, expected in (("reversed", "3080#0803"), ("carry", "7+6+0=13,1+8+1=10,3+4+1=08#0803")):
        task = addition(style)
        assert task.source.demonstration((317, 486), _never()) == expected
        assert task.decode(task._prompt(0, (317, 486)).tokens) == "317+486="
    assert addition().source.question((7, 40)) == "007+040="


def _never():
    """A generator that never slips, whatever the rate: it draws 1 - epsilon."""
    import numpy as np

    return np.random.default_rng(0)


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        # ^e471= : 4 7 1 | 1+4=5, 5+7=2, 2+1=3, 3+5=8, 8+2=0
        ("e5d2c3b8a0#0$", 1.0),
        ("52380#0$", 1.0),
        ("#0$", 1.0),
        ("e5d2c3b8a0#0", 0.0),
        ("e5d2c3b8a0#8$", 0.0),
        ("e5d2c3b8a0#00$", 0.0),
        ("e5d2c3b8a0#0#0$", 0.0),
        ("e5d2c3b8a0$", 0.0),
        ("$", 0.0),
        ("", 0.0),
    ],
)
def test_chain_grades_by_hand(answer, reward):
    assert graded(chain(), (5, (4, 7, 1)), answer) == reward


def test_chain_prompt_and_demonstrations_by_hand():
    assert chain("count").source.demonstration((5, (4, 7, 1)), _never()) == "e5d2c3b8a0#0"
    assert chain("plain").source.demonstration((5, (4, 7, 1)), _never()) == "52380#0"
    task = chain()
    assert task.decode(task._prompt(0, (5, (4, 7, 1))).tokens) == "^e471="


@every_task
def test_prompts_are_functions_of_seed_and_position(make):
    task = make()
    whole = task.prompts(3, 40, seed=1)
    assert whole == task.prompts(3, 16, seed=1) + task.prompts(19, 1, seed=1) + make().prompts(20, 23, seed=1)
    assert [prompt.position for prompt in whole] == list(range(3, 43))
    shifted = [prompt.problem for prompt in task.prompts(4, 40, seed=0)]
    assert sum(a.problem == b for a, b in zip(whole, shifted, strict=True)) <= 2, "seeds must not share a shifted order"


@every_task
def test_demonstrations_earn_the_reward(make):
    task = make()
    for tokens, response in task.demonstrations(0, 200, seed=0):
        problem = _problem_of(task, tokens)
        assert task.grade(task._prompt(0, problem), response) == 1.0
        assert split_of(task.source.name(problem)) is Split.coldstart
        assert response.count(task.eos) == 1 and response[-1] == task.eos and task.pad not in response


def _problem_of(task, tokens):
    text = task.decode(tokens)
    if text.startswith("^"):
        return ord(text[1]) - ord("a") + 1, tuple(int(value) for value in text[2:-1])
    left, right = text[:-1].split("+")
    return int(left), int(right)


@every_task
def test_wrong_step_rate_is_the_rate_of_wrong_steps(make):
    """P(answer right) is at least (1 - p)^steps, and less than 1 by about what p costs."""
    task, rate = make(wrong_step_rate=0.1), 0.1
    demonstrations = task.demonstrations(0, 2000, seed=0)
    right = sum(
        task.grade(task._prompt(0, _problem_of(task, prompt)), response) for prompt, response in demonstrations
    ) / len(demonstrations)
    lengths = range(4, 17) if task.vocabulary.bos else [3]
    unspoiled = sum((1 - rate) ** length for length in lengths) / len(lengths)
    assert unspoiled - 0.04 < right < unspoiled + 0.12  # two errors may cancel in the last digit, never often
    assert [p for p, _ in demonstrations] == [p for p, _ in make().demonstrations(0, 2000, seed=0)]


def test_wrong_steps_are_carried_on():
    for prompt, response in chain(wrong_step_rate=0.5).demonstrations(0, 50, seed=0):
        text = chain().decode(response)
        values = [int(character) for character in text.partition("#")[0][1::2]]
        assert len(values) == _problem_of(chain(), prompt)[0]
        assert text.endswith(f"#{values[-1]}$")
    for _, response in addition(wrong_step_rate=0.5).demonstrations(0, 50, seed=0):
        work, _, answer = addition().decode(response)[:-1].partition("#")
        assert work == answer[::-1]


def test_chain_splits_exhaustively():
    """All 13,000 problems: each in exactly one split, and each drawn only by its own."""
    task = chain()
    problems = {split: set() for split in Split}
    for num_steps, given in product(range(4, 17), product(range(10), repeat=3)):
        problems[split_of(task.source.name((num_steps, given)))].add((num_steps, given))
    sizes = {split: len(found) for split, found in problems.items()}
    assert sum(sizes.values()) == 13_000
    assert sizes[Split.train] > 10_000 and min(sizes[Split.coldstart], sizes[Split.eval]) > 1_150
    assert {prompt.problem for prompt in task.prompts(0, 1000, seed=0)} <= problems[Split.train]
    assert {_problem_of(task, tokens) for tokens, _ in task.demonstrations(0, 1000, seed=0)} <= problems[
        Split.coldstart
    ]
    every_held_out = task.eval_prompts(sizes[Split.eval])
    assert {prompt.problem for prompt in every_held_out} == problems[Split.eval]
    with pytest.raises(ConfigError, match=f"eval.num_problems=5000: this task has only {sizes[Split.eval]} held-out"):
        task.eval_prompts(5000)


def test_addition_splits_are_disjoint_up_to_order():
    task = addition()

    def pairs(problems):
        return {tuple(sorted(problem)) for problem in problems}

    train = pairs(prompt.problem for prompt in task.prompts(0, 5000, seed=0))
    evaluation = pairs(prompt.problem for prompt in task.eval_prompts(2000))
    shown = pairs(_problem_of(task, tokens) for tokens, _ in task.demonstrations(0, 2000, seed=0))
    assert len(train) > 4900 and len(evaluation) > 1950 and len(shown) > 1900
    assert not train & evaluation and not train & shown and not evaluation & shown
    assert split_of("317+486") is split_of(task.source.name((486, 317)))


@every_task
def test_eval_prompts_are_distinct_and_a_prefix_of_more(make):
    task = make()
    prompts = task.eval_prompts(100)
    assert prompts == make().eval_prompts(150)[:100]
    assert len({prompt.tokens for prompt in prompts}) == 100
    assert [prompt.position for prompt in prompts] == list(range(100))


@every_task
def test_text_and_tokens_round_trip(make):
    task = make()
    for prompt, response in task.demonstrations(0, 20, seed=3):
        assert task.encode(task.decode(prompt + response)) == prompt + response
    assert task.vocab_size == len({task.decode([token]) for token in range(task.vocab_size)})
    assert task.pad != task.eos


@pytest.mark.parametrize(("style", "make", "longest"), [
    ("reversed", addition, 10), ("carry", addition, 32), ("count", chain, 35), ("plain", chain, 19),
])  # fmt: skip
def test_lengths_of_demonstrations(style, make, longest):
    assert max(len(response) for _, response in make(style).demonstrations(0, 200, seed=0)) == longest


def test_bad_keys_name_the_right_ones():
    def refused(match, cfg, cold=None):
        with pytest.raises(ConfigError, match=match):
            registry.build(cfg, cold or coldstart("reversed"))

    refused("task.name=adition is unknown; did you mean addition", task_config("adition", digits=3))
    refused("task.digits is null", task_config("addition"))
    refused(
        "coldstart.style=reverse is unknown; did you mean reversed",
        task_config("addition", digits=3),
        coldstart("reverse"),
    )
    refused(
        "task.min_steps=9 task.max_steps=4",
        task_config("chain", digits=3, min_steps=9, max_steps=4),
        coldstart("count"),
    )
    refused("task.digits=1", task_config("chain", digits=1, min_steps=1, max_steps=4), coldstart("count"))
    refused("task.digits=40", task_config("addition", digits=40))
    with pytest.raises(ConfigError, match="held-out"):
        tiny = registry.build(task_config("chain", digits=2, min_steps=1, max_steps=1), coldstart("count"))
        tiny.eval_prompts(90)


def test_vocabulary_refuses_what_it_cannot_say():
    with pytest.raises(ValueError, match="'x'"):
        addition().encode("12x")
    with pytest.raises(ValueError, match="twice"):
        Vocabulary(text="ab$", pad="_", eos="$", bos="")


def test_a_problem_of_the_config_changes_with_every_key():
    """No key of the synthetic tasks is without effect."""
    base = task_config("chain", digits=3, min_steps=4, max_steps=16)
    first = [prompt.problem for prompt in registry.build(base, coldstart("count")).prompts(0, 50, seed=0)]
    for change in ({"digits": 4}, {"min_steps": 5}, {"max_steps": 15}):
        other = registry.build(dataclasses.replace(base, **change), coldstart("count"))
        assert [prompt.problem for prompt in other.prompts(0, 50, seed=0)] != first
