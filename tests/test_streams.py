"""Streams: a pure function of (seed, purpose, indices), and no two of them alike."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minirl.streams import stream, stream_key

PINNED_KEY = 306673634376399353874179969862865532971
PINNED_DRAWS = [0.7517649041022046, 0.06505476240111141]

KEYS = st.tuples(
    st.integers(-(10**6), 10**6),
    st.text(st.characters(exclude_characters="/"), max_size=6),
    st.lists(st.integers(-5, 50), max_size=4).map(tuple),
)


@given(KEYS, KEYS)
def test_different_names_are_different_streams(left: tuple, right: tuple) -> None:
    assert (stream_key(left[0], left[1], *left[2]) == stream_key(right[0], right[1], *right[2])) == (left == right)


def test_neighbouring_seeds_share_no_stream_at_shifted_steps() -> None:
    """The fault of `seed + step`: seeds 0, 1, 2 see each other's draws one step later."""
    keys = {stream_key(seed, "rollout", step, sample) for seed in range(6) for step in range(40) for sample in range(8)}
    assert len(keys) == 6 * 40 * 8


@pytest.mark.parametrize(
    ("left", "right"),
    [((0, "a", 1), (0, "a", 1, 0)), ((0, "a", 11), (0, "a", 1, 1)), ((1, "a"), (0, "a", 1)), ((0, "a1"), (0, "a", 1))],
)
def test_fields_do_not_run_into_each_other(left: tuple, right: tuple) -> None:
    assert stream_key(*left) != stream_key(*right)


def test_a_purpose_cannot_imitate_indices() -> None:
    with pytest.raises(ValueError, match="separator"):
        stream(0, "a/1")


def test_a_stream_starts_anew_at_every_call() -> None:
    first, again = stream(3, "eval", 5, 1), stream(3, "eval", 5, 1)
    first.random(10)
    assert again.random() == stream(3, "eval", 5, 1).random() != first.random()


def test_numpy_integers_name_the_same_stream() -> None:
    assert stream_key(np.int64(3), "eval", np.int32(5)) == stream_key(3, "eval", 5)


def test_streams_look_independent_and_uniform() -> None:
    draws = np.array([stream(0, "rollout", i).random(50) for i in range(400)])
    assert abs(draws.mean() - 0.5) < 5 / np.sqrt(12 * draws.size)
    correlation = np.corrcoef(draws[:, 0], draws[:, 1])[0, 1], np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]
    assert max(map(abs, correlation)) < 0.2  # 4 standard errors


def test_the_same_in_another_process_and_without_torch() -> None:
    code = "import sys; from minirl.streams import stream; print(stream(7, 'x', 1).random(), 'torch' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert float(printed[0]) == stream(7, "x", 1).random() and printed[1] == "False"


def test_a_stream_is_what_it_was_when_the_first_runs_were_made() -> None:
    """Changing these numbers makes every recorded run unrepeatable."""
    assert stream_key(0, "rollout", 1, 2) == PINNED_KEY
    assert stream(0, "rollout", 1, 2).random(2).tolist() == PINNED_DRAWS
