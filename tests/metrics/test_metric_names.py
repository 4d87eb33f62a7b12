"""A name that a claim may use is one that is logged, and the other way round."""

import pytest

from minirl.metrics.names import is_name_of, logged_names
from minirl.metrics.reference import page

NAMES = logged_names()


@pytest.mark.parametrize(
    "metric",
    [
        "eval/avg",
        "eval_aime24/avg",
        "eval_hmmt25/pass_se",
        "eval/length",
        "reward/mean",
        "mismatch_live/kl_k3",
        "mismatch/logprob_abs_diff_p95",
        "routing/by_layer/11",
        "routing/by_position/prompt",
        "routing/local_by_position/16",
        "time/update",
        "time/update_cpu",
        "optim/grad_norm",
        "tokens/response",
    ],
)
def test_what_is_logged_has_a_name(metric: str) -> None:
    assert any(is_name_of(metric, name) for name in NAMES)


@pytest.mark.parametrize(
    "metric",
    ["eval/avgg", "eval/", "avg", "mismatch/kl", "routing/by_layer/x", "mismatch/kl_k1_p95", "time", "xeval/avg"],
)
def test_what_is_not_logged_has_none(metric: str) -> None:
    assert not any(is_name_of(metric, name) for name in NAMES)


def test_names_are_those_of_the_page() -> None:
    shown = page()
    assert len(NAMES) == len(set(NAMES)) and all(f"`{name}`" in shown or name in shown for name in NAMES)
