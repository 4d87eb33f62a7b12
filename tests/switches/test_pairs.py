"""Which arms differ in one choice; no model is built."""

from pathlib import Path

from stub_checkpoint import write as write_checkpoint

from minirl.switches.command import planned
from minirl.switches.pairs import pairs

ARMS = """
base: [coldstart.checkpoint=start, num_mini_batches=4]
arms:
  clip: []
  no clip: [algo=minirl_no_clip]
  R3: [algo.routing=r3]
  slow: [train.optim.lr=1e-5]
  no clip, slow: [algo=minirl_no_clip, train.optim.lr=1e-5]
  clip again: [algo=minirl, run.device=cpu]
  far: [algo=grpo, engine.numerics=int4]
"""


def found(folder: Path, *overrides: str) -> dict[tuple[str, str], tuple[tuple[str, ...], bool]]:
    write_checkpoint(folder / "start", b"1")
    (folder / "mine.yaml").write_text(ARMS)
    arms = planned("mine.yaml", overrides, ())
    return {(pair.first, pair.second): (pair.differing, pair.same) for pair in pairs(arms)}


def test_pairs_that_differ_in_one_choice(own_folder: Path) -> None:
    """Clipping is one choice, though it takes three keys to write."""
    pairs_of = found(own_folder)
    assert pairs_of[("clip", "no clip")] == (("algo.trust_region",), False)
    assert pairs_of[("clip", "R3")] == (("algo.routing",), False)
    assert pairs_of[("no clip", "no clip, slow")] == (("train.optim.lr",), False)
    assert ("clip", "no clip, slow") not in pairs_of and ("R3", "slow") not in pairs_of


def test_one_experiment_twice_is_said_so(own_folder: Path) -> None:
    assert found(own_folder)[("clip", "clip again")] == ((), True)
    on_policy = found(own_folder, "num_mini_batches=1")
    assert on_policy[("clip", "no clip")] == (("algo.trust_region",), True)


def test_an_arm_without_a_neighbour_is_compared_with_the_first(own_folder: Path) -> None:
    differing, same = found(own_folder)[("clip", "far")]
    assert "engine.numerics" in differing and "algo.advantage" in differing and not same
