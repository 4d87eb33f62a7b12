"""All algorithms on one recorded batch of a run, by the command."""

import json
from pathlib import Path

import numpy as np
import pytest
from small_runs import start
from typer.testing import CliRunner

from minirl.cli import app
from minirl.config import ConfigError
from minirl.rescore.command import rescore

RUN = ["num_updates=4", "num_mini_batches=2", "eval.every=2", "train.checkpoint_every=2", "train.optim.lr=2e-3"]
RUN += ["train.optim.warmup_updates=0", "group_size=8", "run.record_rollouts=true"]


@pytest.fixture(scope="module")
def recorded(small_coldstart: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("recorded")
    (place / "coldstarts").symlink_to(small_coldstart / "coldstarts")
    return start(place, *RUN)[1]


def silent(line: str) -> None: ...


def test_gradients_are_compared_on_the_same_data(recorded: Path) -> None:
    arms = ["minirl", "minirl_length_norm", "reinforce", "algo=minirl algo.aggregation.scale=3"]
    found = rescore(recorded / "rollouts" / "0", arms, floor=None, say=silent)
    assert found.names == ("the run's own", *arms) and found.same == {"minirl": "the run's own"}
    assert "1 updates after it sampled" in found.title
    scaled = found.names.index("algo=minirl algo.aggregation.scale=3")
    assert found.figures.norm[scaled] == pytest.approx(3 * found.figures.norm[0], rel=1e-4)
    assert found.figures.cosine[0, scaled] == pytest.approx(1, abs=1e-5)
    assert found.figures.cosine[0, 3] < 0.99999 and found.figures.norm[0] > 0
    assert np.allclose(found.figures.cosine, found.figures.cosine.T)


def test_the_command_prints_a_table_and_writes_a_picture(recorded: Path, own_folder: Path) -> None:
    words = ["rescore", str(recorded / "rollouts" / "0"), "grpo", "algo=minirl algo.routing=r3", "--plot", "p.png"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    for said in ("cos own", "noise", "grpo", "plot: p.png"):
        assert said in result.stdout
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")
    plain = CliRunner().invoke(app, [*words, "--json"])
    found = json.loads(plain.stdout)
    assert set(found["arms"]) == {"the run's own", "grpo", "algo=minirl algo.routing=r3"}
    assert 0 < found["arms"]["grpo"]["cosine"]["the run's own"] < 1


@pytest.mark.parametrize(
    ("place", "arms", "expected"),
    [
        ("nowhere", [], "no recorded batch"),
        ("", ["grop"], "did you mean grpo"),
        ("", ["algo=grpo train.optim.lr=1"], r"train\.optim\.lr=1: an arm of rescore is made of algo\.\* alone"),
    ],
)
def test_bad_input_is_told_in_one_line(recorded: Path, place: str, arms: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        rescore(recorded / place, arms, floor=None, say=silent)


def test_a_batch_whose_weights_are_gone_is_refused(recorded: Path) -> None:
    """train.num_checkpoints=1 has pruned the checkpoint of update 2."""
    if (recorded / "checkpoints" / "2").exists():
        pytest.skip("it was the last good one")
    with pytest.raises(ConfigError, match=r"the checkpoint of update 2, which sampled this batch, is gone"):
        rescore(recorded / "rollouts" / "2", ["grpo"], floor=None, say=silent)
