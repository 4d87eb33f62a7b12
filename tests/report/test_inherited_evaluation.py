"""Evaluation is common to all compared arms, or the page says that it is not."""

import pytest
from sweep_in_memory import arm, run, sweep

from minirl.report.confounders import cautions
from minirl.report.differences import differences


def found(*configs: dict[str, object]) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    arms = [arm(name, [run(0, {}, config=config)]) for name, config in zip("ABC", configs, strict=False)]
    everything = sweep(arms)
    return [(one.text, one.pairs) for one in cautions(everything, differences(everything)) if "eval." in one.text]


@pytest.mark.parametrize(("key", "values"), [("temperature", (0.6, 1.0)), ("max_response_tokens", (12, 35))])
def test_arms_that_inherit_different_sampling_are_confounded(key: str, values: tuple[float, float]) -> None:
    first, second = ({f"sampling.{key}": value, f"eval.{key}": None} for value in values)
    [(text, pairs)] = found(first, second, dict(first))
    assert text.startswith(f"eval.{key}=null follows sampling.{key}")
    assert f"A {values[0]:g}, B {values[1]:g}" in text
    assert pairs == (("A", "B"), ("B", "C"))


def test_an_evaluation_of_its_own_is_common_to_all() -> None:
    assert not found(*({"sampling.temperature": value, "eval.temperature": 1.0} for value in (0.6, 1.0)))
    # inherited and written down, and yet the same
    assert not found(
        {"sampling.temperature": 1.0, "eval.temperature": None}, {"sampling.temperature": 1.0, "eval.temperature": None}
    )
