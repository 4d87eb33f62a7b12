"""The self-check of the first rollout."""

import json
from pathlib import Path

import pytest
import torch

from minirl.agreement import GROWTH, Disagreement, explained, measured_before, refuse_disagreement, self_check
from minirl.compose import load
from minirl.record import RunRecord
from minirl.types import OldPolicy, RolloutBatch
from minirl.world import World

WORLD = World(0, 1, torch.device("cpu"))


def rollouts(logprobs: list[float], valid: bool = True) -> RolloutBatch:
    """One response of these logprobs to a prompt of one token."""
    length = len(logprobs) + 1
    return RolloutBatch(
        tokens=torch.zeros(length, dtype=torch.int64),
        cu_seqlens=torch.tensor([0, length]),
        response_mask=torch.tensor([False] + [True] * len(logprobs)),
        rollout_logprobs=torch.tensor([0.0, *logprobs]),
        truncated=torch.zeros(1, dtype=torch.bool),
        valid=torch.tensor([valid]),
        positions=torch.zeros(1, dtype=torch.int64),
        routes=None,
        group_size=1,
        version=0,
    )


def old(logprobs: list[float]) -> OldPolicy:
    values = torch.tensor([0.0, *logprobs])
    return OldPolicy(values, torch.zeros_like(values), None)


def check(logprobs: list[float], *, bound: float, before: float = 0.0) -> list[str]:
    """The notes of a check of a response sampled with logprobs -1 and -2."""
    notes = list[str]()
    sampled = rollouts([-1.0, -2.0])
    refuse_disagreement(sampled, old(logprobs), bound=bound, before=before, note=notes.append, world=WORLD)
    return notes


def test_what_the_format_explains_passes_and_more_stops_the_run() -> None:
    assert check([-1.1, -1.7], bound=0.2001) == []
    with pytest.raises(Disagreement, match=r"mean \|log pi_old - log mu\| is 0\.2 nats over 2 tokens"):
        check([-1.1, -1.7], bound=0.1999)
    with pytest.raises(Disagreement, match="nan nats"):
        check([float("nan"), -2.0], bound=1.0)


def test_invalid_responses_say_nothing() -> None:
    with pytest.raises(Disagreement, match="not finite"):
        refuse_disagreement(
            rollouts([0.0], valid=False), old([-9.0]), bound=1.0, before=1.0, note=lambda text: None, world=WORLD
        )


def test_a_gap_that_the_run_had_before_is_noted_and_a_wider_one_stops_it() -> None:
    (said,) = check([-1.1, -1.7], bound=0.1, before=0.2001 / GROWTH)
    assert "0.2 nats" in said and "explains 0.1" in said
    with pytest.raises(Disagreement, match=r"explains at most 0\.1"):
        check([-1.1, -1.7], bound=0.1, before=0.1999 / GROWTH)
    with pytest.raises(Disagreement, match="nan nats"):
        check([float("nan"), -2.0], bound=0.1, before=9.0)


def test_what_a_run_measured_before_it_was_interrupted(tmp_path: Path) -> None:
    """The run of a collapse that is killed: rows of updates between rollouts have no mismatch."""
    name = "mismatch/logprob_abs_diff"
    rows = [{"version": 0, name: 0.01}, {"version": 4, name: 0.3}, {"version": 5}, {"version": 8, name: 0.9}]
    path = tmp_path / "metrics.jsonl"
    assert measured_before(path, 8) == 0.0
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [measured_before(path, version) for version in (0, 4, 8, 9)] == [0.0, 0.01, 0.3, 0.9]


def test_the_note_is_in_the_record(tmp_path: Path) -> None:
    config, record = load(["engine.numerics=fp32"]), RunRecord(tmp_path)
    record.update(notes=["first"])
    (tmp_path / "metrics.jsonl").write_text('{"version": 4, "mismatch/logprob_abs_diff": 0.15}\n')
    self_check(config, record, 8, WORLD)(rollouts([-1.0, -2.0]), old([-1.1, -1.7]))
    first, second = record.read()["notes"]
    assert first == "first" and "0.15 before it was interrupted" in second
    with pytest.raises(Disagreement):
        self_check(config, record, 0, WORLD)(rollouts([-1.0, -2.0]), old([-1.1, -1.7]))


def test_the_coarser_side_decides() -> None:
    fine, engine, trainer = (
        explained(load(["engine.numerics=" + numerics, "train.compute_dtype=" + dtype]))
        for numerics, dtype in (("fp32", "float32"), ("bf16", "float32"), ("fp32", "bfloat16"))
    )
    assert fine < engine == trainer
