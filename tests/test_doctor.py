"""The doctor: its arithmetic on made-up gaps, its words, and itself on real engines."""

import math
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from minirl.compose import load
from minirl.config import Config
from minirl.doctor.command import diagnose, picture
from minirl.doctor.display import environment_table, gap_table
from minirl.doctor.environment import environment
from minirl.doctor.gap import Gap, Routing, gap
from minirl.doctor.measure import measure
from minirl.doctor.verdict import Level, Picture, findings, overall
from minirl.types import OldPolicy, RolloutBatch

# a random model whose distributions are far from uniform, so that its routing matters
RANDOM = ["model.initializer_range=0.15", "prompts_per_mini_batch=16"]
ENGINES = [["engine=torch"], pytest.param(["engine=vllm", "engine.cache_mib=64"], marks=pytest.mark.vllm)]


def rollouts(lengths: list[int], valid: list[bool]) -> RolloutBatch:
    """Responses of the given lengths to prompts of two tokens, with rollout logprobs of -1."""
    mask = torch.cat([torch.tensor([False, False] + [True] * n) for n in lengths])
    return RolloutBatch(
        tokens=torch.zeros(len(mask), dtype=torch.int64),
        cu_seqlens=torch.tensor([0, *torch.tensor([n + 2 for n in lengths]).cumsum(0).tolist()]),
        response_mask=mask,
        rollout_logprobs=torch.where(mask, -1.0, 0.0),
        truncated=torch.zeros(len(lengths), dtype=torch.bool),
        valid=torch.tensor(valid),
        positions=torch.arange(len(lengths)),
        routes=None,
        group_size=1,
        version=0,
    )


def old(batch: RolloutBatch, differences: list[float]) -> OldPolicy:
    """A trainer whose logprobs are higher by the given d, token after token."""
    logprobs = batch.rollout_logprobs.clone()
    logprobs[batch.response_mask] += torch.tensor(differences)
    return OldPolicy(logprobs, torch.zeros_like(logprobs), None)


def test_the_gap_in_closed_form() -> None:
    batch = rollouts([3, 1, 2], [True, False, True])
    found = gap(batch, old(batch, [0.1, -0.2, 1.0, 99.0, -0.4, 0.0]), extreme_ratio=2.0)
    seen = [0.1, -0.2, 1.0, -0.4, 0.0]
    assert found.num_tokens == 5 and found.largest == pytest.approx(1.0)
    assert found.k1 == pytest.approx(-sum(seen) / 5, abs=1e-6)
    assert found.k3 == pytest.approx(sum(math.exp(d) - 1 - d for d in seen) / 5, abs=1e-6)
    assert found.extreme == pytest.approx(0.2) and found.quantile(0.5) == pytest.approx(0.2)
    assert found.positions == (0, 1, 2)
    assert found.by_position == pytest.approx((0.25, 0.1, 1.0))
    assert gap(rollouts([1], [False]), old(rollouts([1], [False]), [0.0]), extreme_ratio=2.0) is None


def test_long_responses_are_binned_by_position() -> None:
    batch = rollouts([40], [True])
    found = gap(batch, old(batch, [float(t) / 100 for t in range(40)]), extreme_ratio=2.0)
    assert found.positions == tuple(range(0, 40, 3))
    assert found.by_position[:2] == pytest.approx((0.01, 0.04), abs=1e-6)


def made(k3: float = 1e-4, k1: float = 1e-4, extreme: float = 0.0, mean: float = 0.01, largest: float = 0.1) -> Gap:
    differences = torch.full((100_000,), mean)
    differences[-1] = largest
    return Gap(k1, k3, extreme, mean, (0,), (mean,), differences)


def seen(live: Gap, replayed: Gap | None = None, **routing: object) -> Picture:
    usual = {"by_layer": {0: 0.02, 1: 0.04}, "any_layer": 0.05, "missing": 0.0, "chance_layers": ()}
    kind = Routing(**usual | routing) if replayed is not None or routing else None
    return Picture(live, replayed, kind, num_invalid=0, num_responses=8)


@pytest.fixture(scope="module")
def config() -> Config:
    return load(["engine.numerics=bf16"])


def test_words_follow_the_figures(config: Config) -> None:
    def level(picture: Picture) -> Level:
        return overall(findings(config, picture))

    assert level(seen(made())) is Level.healthy
    assert level(seen(made(k3=5e-3))) is Level.watch  # much for a dense model
    assert level(seen(made(k3=5e-3), made(k3=5e-3))) is Level.healthy  # not for one with experts
    assert level(seen(made(k3=0.2), made())) is Level.unhealthy
    assert level(seen(made(k1=-0.02))) is Level.unhealthy
    assert level(seen(made(extreme=1e-3))) is Level.watch and level(seen(made(extreme=0.2))) is Level.unhealthy
    assert level(seen(made(mean=0.3))) is Level.unhealthy
    assert level(seen(made(), made(), missing=0.01)) is Level.watch
    assert level(seen(made(), made(), chance_layers=(1,))) is Level.unhealthy
    assert level(Picture(made(), None, None, num_invalid=1, num_responses=8)) is Level.unhealthy


def test_the_effect_of_replay_is_said(config: Config) -> None:
    def texts(live: Gap, replayed: Gap) -> str:
        return "\n".join(finding.text for finding in findings(config, seen(live, replayed)))

    assert "R3 lowers k3 10 times" in texts(made(k3=1e-3), made(k3=1e-4))
    assert "arithmetic rather than routing" in texts(made(k3=1e-3), made(k3=9e-4))


def test_fp32_must_agree_to_rounding() -> None:
    config = load(["engine.numerics=fp32"])
    assert overall(findings(config, seen(made(mean=1e-6, largest=1e-6)))) is Level.healthy
    broken = findings(config, seen(made(mean=1e-6, largest=1e-6), made(mean=1e-6, largest=1e-3)))
    assert overall(broken) is Level.unhealthy
    assert "something other than rounding" in broken[-2].text


def test_what_is_missing_is_said_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minirl.doctor.environment.installed", lambda: None)
    monkeypatch.setattr("minirl.doctor.environment.package", lambda name: None)
    rows = {row.name: row for row in environment(load([]))}
    assert rows["vllm"].found is None and not rows["vllm"].missing and not rows["reasoning-gym"].missing
    words = ["engine=vllm", "task=reasoning_gym", "task.dataset=leg_counting"]
    rows = {row.name: row for row in environment(load(words))}
    assert "pip install" in rows["vllm"].missing and "minirl[tasks]" in rows["reasoning-gym"].missing
    console = Console(width=120, no_color=True, record=True, file=StringIO())
    console.print(environment_table(list(rows.values())))
    console.print(gap_table(seen(made(), made())))
    text = console.export_text()
    assert "missing: pip install" in text and "R3" in text


@pytest.mark.parametrize("engine", ENGINES)
def test_replay_removes_most_of_the_gap(engine: list[str]) -> None:
    found = {}
    for numerics in ("bf16", "fp32"):
        config = load([*engine, *RANDOM, f"engine.numerics={numerics}"])
        found[numerics] = picture(config, measure(config, None))
    assert found["bf16"].live.k3 >= 5 * found["bf16"].replayed.k3 > 0
    assert found["fp32"].replayed.k3 < 1e-9
    assert found["bf16"].routing.any_layer > 0 and not found["bf16"].routing.chance_layers


def test_a_diagnosis_ends_in_words_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load(["engine.numerics=bf16", *RANDOM])
    plot = tmp_path / "deep" / "doctor.png"
    assert diagnose(config, None, plot, Console(width=100))
    said = capsys.readouterr().out
    assert "before any training" in said and "k3" in said and "healthy" in said
    assert plot.read_bytes().startswith(b"\x89PNG")
