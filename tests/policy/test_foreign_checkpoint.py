"""A checkpoint from somewhere else is data: loading one runs no code that it names."""

import os
import pickle
from pathlib import Path

import pytest
from policy_cases import equal, policy, weights

from minirl.config import ConfigError
from minirl.policy.checkpoint import METADATA, newest


class Planted:
    """Pickled, it says: call os.mkdir with this path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path: Path) -> None:
    trainer = policy()
    trainer.save(tmp_path / "checkpoints")
    folder = newest(tmp_path / "checkpoints")
    before, trap = weights(trainer), tmp_path / "trap"
    (folder / METADATA).write_bytes(pickle.dumps(Planted(trap)))
    with pytest.raises(ConfigError, match=r"\.metadata: it names posix\.mkdir, which no checkpoint of minirl holds"):
        trainer.load(folder)
    assert not trap.exists() and equal(before, weights(trainer))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_our_own_are_read(tmp_path: Path, dtype: str) -> None:
    trainer, other = policy(compute_dtype=dtype), policy(compute_dtype=dtype)
    trainer.save(tmp_path / "checkpoints")
    other.load(newest(tmp_path / "checkpoints"))
    assert equal(weights(trainer), weights(other))
