"""On real toy runs, dealt to the arms at random, the report finds next to nothing; with an effect added, it finds it.

Null sweeps are made of the curves in toy_traces.json, whose making toy_traces.py describes.
"""

import numpy as np
import pytest
from toy_traces import null_sweep, real_sweep, traces

from minirl.report.claims import evaluate
from minirl.report.findings import Verdict
from minirl.report.statistics import LEVEL, SEEDS_FOR_VERDICT

NUM_SWEEPS = 200
REAL = {name: real_sweep(tree) for name, tree in traces().items()}


def share(name: str, verdict: Verdict, effect: float) -> float:
    """Of sweeps made of the runs of `name`: how many give any claim this verdict. The effect is on `hero`."""
    random, real = np.random.default_rng(0), REAL[name]
    made = (null_sweep(real, random, effect, hero(name)) for _ in range(NUM_SWEEPS))
    return float(np.mean([any(one.verdict == verdict for one in evaluate(sweep)) for sweep in made]))


def hero(name: str) -> str | None:
    """The arm that the first claim about the evaluation says is higher."""
    claims = [one for one in REAL[name].claims if one["relation"] == "greater" and one["metric"] == "eval/avg"]
    return str(claims[0]["arms"][0]) if claims else None


@pytest.mark.parametrize("name", REAL)
def test_the_traces_are_of_five_whole_seeds(name: str) -> None:
    real = REAL[name]
    assert len(real.seeds) >= SEEDS_FOR_VERDICT
    assert all(len(arm.results) == len(real.seeds) for arm in real.arms.values())


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("verdict", [Verdict.reproduced, Verdict.contradicted])
def test_null_sweeps_of_real_runs_are_rarely_decided(name: str, verdict: Verdict) -> None:
    assert share(name, verdict, 0.0) <= LEVEL


@pytest.mark.parametrize("name", [name for name in REAL if hero(name)])
def test_an_effect_that_is_there_is_found(name: str) -> None:
    """So the rarity above is not silence: the same deals, one arm raised by far more than seeds differ."""
    assert share(name, Verdict.reproduced, 5.0) > 0.9
