"""The order of a step, with engine, policy and tracker replaced by recorders: who holds which weights, and when."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from minirl.algo.algorithm import build
from minirl.clock import Clock
from minirl.compose import load
from minirl.loop import Left, Loop, Plan
from minirl.metrics.statistics import Mean
from minirl.types import Degenerate, OldPolicy, Prompt, Rewards, RolloutBatch, Sampling
from minirl.world import World

SAMPLING = Sampling(temperature=1.0, max_response_tokens=2, eos=1, seed=5, purpose="rollout")


class Stage:
    """Everything the loop calls, in one object: it notes each call with the versions it saw."""

    def __init__(self, weight: float = 1.0) -> None:
        self.version = 0  # the policy's
        self.held = -1  # the engine's
        self.weight = weight
        self.calls: list[tuple[object, ...]] = []
        self.positions: list[int] = []
        self.rows: dict[int, set[str]] = {}
        self.open: set[str] = set()

    # the engine

    def load_parameters(self, parameters: object, version: int) -> None:
        self.held = version
        self.calls.append(("sync", version))

    def generate(self, prompts: list[Prompt], sampling: Sampling, group_size: int) -> RolloutBatch:
        self.calls.append(("rollout", self.held))
        self.positions += [prompt.position for prompt in prompts]
        num_responses = len(prompts) * group_size
        mask = torch.tensor([False, True, True]).repeat(num_responses)
        return RolloutBatch(
            tokens=torch.arange(len(mask)) % 7,
            cu_seqlens=torch.arange(0, len(mask) + 1, 3),
            response_mask=mask,
            rollout_logprobs=torch.where(mask, -1.0, 0.0),
            truncated=torch.zeros(num_responses, dtype=torch.bool),
            valid=torch.ones(num_responses, dtype=torch.bool),
            positions=torch.tensor([prompt.position for prompt in prompts]).repeat_interleave(group_size),
            routes=None,
            group_size=group_size,
            version=self.held,
        )

    def rest(self) -> None:
        self.calls.append(("rest",))

    # the policy

    def parameters(self) -> list[tuple[str, Tensor]]:
        return []

    def recompute(self, rollouts: RolloutBatch, routing: object) -> OldPolicy:
        self.calls.append(("old", self.version))
        return OldPolicy(rollouts.rollout_logprobs.clone(), rollouts.rollout_logprobs.abs(), None)

    def update(self, mini_batch: object, algo: object) -> dict[str, Mean]:
        self.calls.append(("update", self.version, self.version - mini_batch.rollouts.version))
        self.version += 1
        return {"is_weight/mean": Mean(self.weight, 1)}

    def save(self, folder: Path) -> None:
        self.calls.append(("save", self.version))

    # the task, the evaluator, the tracker

    def prompts(self, start: int, count: int, seed: int) -> list[Prompt]:
        return [Prompt(position, (2,), None) for position in range(start, start + count)]

    def decode(self, tokens: object) -> str:
        return ""

    def grade(self, prompts: list[Prompt], rollouts: RolloutBatch) -> Rewards:
        return Rewards(torch.arange(len(rollouts)) % 2 * 1.0, torch.ones(len(rollouts), dtype=torch.bool))

    def evaluate(self, policy: object) -> dict[str, float]:
        self.calls.append(("eval", self.version))
        return {"eval/avg": 0.5, "eval/version": float(self.version)}

    def log(self, version: int, values: dict[str, float]) -> None:
        if "eval/version" in values:
            assert values["eval/version"] == version  # the row of the weights that were measured
        self.open |= values.keys()

    def write(self, version: int, values: dict[str, float]) -> None:
        assert version not in self.rows
        self.rows[version], self.open = self.open | values.keys(), set()

    def samples(self, version: int, rows: object) -> None: ...

    def histograms(self, version: int, counts: object) -> None: ...


def plan(num_mini_batches: int, num_updates: int = 24) -> Plan:
    return Plan(
        num_updates=num_updates,
        num_mini_batches=num_mini_batches,
        prompts_per_mini_batch=3,
        group_size=2,
        eval_every=4,
        checkpoint_every=4,
        live_every=4,
        samples_every=4,
        histograms_every=4,
        extreme_ratio=2.0,
        min_route_overlap=0.3,
        sampling=SAMPLING,
        checkpoints=Path("checkpoints"),
    )


def played(stage: Stage, num_mini_batches: int, num_updates: int, leaves_at: int | None = None) -> Stage:
    Loop(
        plan=plan(num_mini_batches, num_updates),
        algo=build(load(["algo=minirl"]).algo),
        policy=stage,
        engine=stage,
        task=stage,
        grade=stage.grade,
        evaluate=stage.evaluate,
        verify=lambda rollouts, old: stage.calls.append(("verify", stage.version)),
        keep=lambda batch: stage.calls.append(("keep", batch.rollouts.version)),
        judge=lambda: stage.calls.append(("judge", stage.version)),
        leave=lambda: leaves_at is not None and stage.version >= leaves_at,
        tracker=stage,
        world=World(0, 1, torch.device("cpu")),
        clock=Clock(),
    ).train()
    return stage


def test_one_step_in_the_order_of_the_paper():
    calls = played(Stage(), 2, 2).calls
    assert calls == [
        ("sync", 0),
        ("eval", 0),
        ("rollout", 0),
        ("rest",),
        ("old", 0),
        ("keep", 0),
        ("verify", 0),
        ("update", 0, 0),
        ("update", 1, 1),
        ("judge", 2),
        ("save", 2),
        ("eval", 2),
    ]


@pytest.mark.parametrize("num_mini_batches", [1, 2, 4])
def test_a_sample_is_as_stale_as_the_updates_since_the_weights_that_made_it(num_mini_batches):
    stage = played(Stage(), num_mini_batches, 8)
    assert [call[1] for call in stage.calls if call[0] == "rollout"] == list(range(0, 8, num_mini_batches))
    assert [call[1:] for call in stage.calls if call[0] == "update"] == [(v, v % num_mini_batches) for v in range(8)]
    assert stage.positions == list(range(8 * 3))


@pytest.mark.parametrize("num_mini_batches", [1, 2, 4])
@pytest.mark.parametrize("resumed", [0, 4])
def test_every_version_has_one_row_and_every_scheduled_evaluation_happens_once(num_mini_batches, resumed):
    stage = Stage()
    stage.version = resumed
    played(stage, num_mini_batches, 8)
    assert sorted(stage.rows) == list(range(resumed, 9))
    assert [version for version, names in stage.rows.items() if "eval/avg" in names] == [
        v for v in (0, 4, 8) if v >= resumed
    ]
    # after a resume too the first thing is to give the engine the weights, and the first rollout is looked at
    assert stage.calls[0] == ("sync", resumed) and ("verify", resumed) in stage.calls
    assert sum(call[0] == "verify" for call in stage.calls) == 1


def test_a_run_that_is_asked_to_leave_saves_at_the_end_of_the_step_and_goes_on_from_there():
    stage = Stage()
    with pytest.raises(Left, match="saved at update 2"):
        played(stage, 2, 8, leaves_at=1)
    assert stage.calls[-2:] == [("judge", 2), ("save", 2)] and sorted(stage.rows) == [0, 1]
    played(stage, 2, 8)
    assert sorted(stage.rows) == list(range(9)) and stage.positions == list(range(8 * 3))


def test_a_run_that_is_at_its_end_does_not_leave():
    stage = played(Stage(), 2, 4, leaves_at=4)
    assert stage.calls[-2:] == [("save", 4), ("eval", 4)]


def test_nothing_is_left_to_do_but_to_evaluate():
    stage = Stage()
    stage.version = 4
    assert played(stage, 2, 4).calls == [("eval", 4)]


def test_weights_that_vanish_are_a_result_and_their_row_is_kept():
    stage = Stage(weight=1e-4)
    with pytest.raises(Degenerate, match=r"mean importance weight is 1\.0e-04 at update 0"):
        played(stage, 2, 4)
    assert list(stage.rows) == [0]


@pytest.mark.parametrize(
    ("num_mini_batches", "expected"),
    [(1, [0, 8, 16]), (2, [0, 8, 16]), (3, [0, 6, 15]), (5, [0, 5, 15, 20]), (16, [0, 16]), (8, [0, 8, 16])],
)
def test_what_is_due_every_8_updates_is_looked_at_once_for_each_whatever_n(num_mini_batches, expected):
    due = plan(num_mini_batches).falls_due
    assert [start for start in range(0, 24, num_mini_batches) if due(start, 8)] == expected
