"""Routing replay through whole runs: engines that lose or displace routes, and who never sees a replayed one."""

from dataclasses import replace

import pytest
import torch
from small_runs import rows, start

import minirl.run
from minirl.metrics.displacement import DisplacedRoutes
from minirl.record import RunRecord, State

SHORT = ["num_updates=2", "eval.every=2", "num_mini_batches=2", "train.checkpoint_every=2", "metrics.live_every=2"]


class Tampering:
    """An engine whose rollouts pass through `change`."""

    def __init__(self, engine, change):
        self.engine, self.change = engine, change

    def generate(self, *request):
        return self.change(self.engine.generate(*request))

    def __getattr__(self, name):
        return getattr(self.engine, name)


@pytest.fixture
def tamper(monkeypatch):
    """tamper(change): the engines that runs build from now on are changed ones. Evaluations have engines of their
    own."""
    build = minirl.run.build_engine

    def install(change):
        monkeypatch.setattr(minirl.run, "build_engine", lambda *a, **k: Tampering(build(*a, **k), change))

    return install


def with_routes(rollouts, **changes):
    return replace(rollouts, routes=replace(rollouts.routes, **changes))


def one_token_late(rollouts):
    return with_routes(rollouts, experts=rollouts.routes.experts.roll(1, 0), present=rollouts.routes.present.roll(1, 0))


def one_token_early(rollouts):
    return with_routes(
        rollouts, experts=rollouts.routes.experts.roll(-1, 0), present=rollouts.routes.present.roll(-1, 0)
    )


def one_layer_off(rollouts):
    return with_routes(rollouts, experts=rollouts.routes.experts.roll(1, 1))


def holed(rollouts):
    """The second fed token of every fifth response has no route."""
    present = rollouts.routes.present.clone()
    present[rollouts.cu_seqlens[:-1:5] + 1] = False
    return with_routes(rollouts, present=present)


@pytest.mark.parametrize("routing", ["live", "r3"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (one_token_late, r"offset \+1"),
        (one_token_early, r"offset -1"),
        (one_layer_off, "decoder layer 0: .*in layer 1"),
    ],
)
def test_a_shifted_table_stops_the_run_before_its_first_update(outputs, tamper, change, words, routing):
    tamper(change)
    missing = "algo.routing_missing=live"  # the shift leaves holes at the ends of sequences
    with pytest.raises(DisplacedRoutes, match=words):
        start(outputs, *SHORT, f"algo.routing={routing}", missing)
    record = RunRecord(next((outputs / "runs").glob("*"))).read()
    assert record["state"] == State.failed and "DisplacedRoutes" in record["reason"]
    assert not (outputs / "runs" / "metrics.jsonl").exists()


def test_lost_routes_fail_a_run_that_did_not_say_what_to_do(outputs, tamper):
    tamper(holed)
    with pytest.raises(ValueError, match=r"no route to replay under algo\.routing_missing=fail"):
        start(outputs, *SHORT, "algo.routing=r3")
    record = RunRecord(next((outputs / "runs").glob("*"))).read()
    assert record["state"] == State.failed and "routing_missing" in record["reason"]


def test_lost_routes_are_routed_live_or_dropped_row_by_row_and_counted(outputs, tamper):
    whole = rows(start(outputs, *SHORT, "algo.routing=r3")[1])[0]
    tamper(holed)
    live = rows(start(outputs, *SHORT, "algo.routing=r3", "algo.routing_missing=live", "run.name=live")[1])[0]
    drop = rows(start(outputs, *SHORT, "algo.routing=r3", "algo.routing_missing=drop", "run.name=drop")[1])[0]
    assert whole["routing/missing"] == whole["routing/local_missing"] == whole["reject/fraction"] == 0
    num_responses = 32
    for row in (live, drop):
        share = row["routing/missing"]
        assert share == row["routing/local_missing"] > 0
        fed = (row["tokens/prompt"] + row["tokens/response"]) - num_responses
        assert share == pytest.approx(7 / fed)  # responses 0, 5, .. 30
        assert 1 - row["routing/replayed"] == pytest.approx(share, rel=0.5)  # of the first mini-batch
    assert live["reject/fraction"] == 0
    # whole responses of the seven that lost a prompt token's route: others keep teaching
    assert 3 / num_responses < drop["reject/fraction"] < 14 / num_responses
    assert live["reward/mean"] == drop["reward/mean"] == whole["reward/mean"]


def test_evaluation_and_free_figures_never_see_the_replay(outputs):
    """R13, R19: of one seed, arms that replay and arms that do not begin with the same evaluation, the same rollouts
    and the same figures of free routing."""
    first = {
        routing: rows(start(outputs, *SHORT, f"algo.routing={routing}", "engine.numerics=int4")[1])[0]
        for routing in ("live", "r2", "r3")
    }
    for name, value in first["live"].items():
        if name.startswith(("eval/", "mismatch_live/", "reward/", "length/")) or (
            name.startswith("routing/")
            and not name.startswith(("routing/local", "routing/replayed", "routing/changed"))
        ):
            assert first["r2"][name] == value == first["r3"][name], name
    for name in ("mismatch/kl_k3", "mismatch/logprob_abs_diff"):
        assert first["live"][name] == first["r2"][name] == first["live"][name.replace("/", "_live/")]
        assert first["r3"][name] != first["r3"][name.replace("/", "_live/")]


class OtherRouters(Tampering):
    """An engine whose routers are a little off, everything else exact."""

    def load_parameters(self, parameters, version):
        draw = torch.Generator().manual_seed(0)
        noisy = (
            (name, value + 0.02 * torch.randn(value.shape, generator=draw) if ".gate." in name else value)
            for name, value in parameters
        )
        self.engine.load_parameters(noisy, version)


def test_r3_removes_the_mismatch_that_comes_from_routing(outputs, monkeypatch):
    """R35: with routers alone perturbed, replay leaves less mismatch than free routing, whose figure stands beside."""
    build = minirl.run.build_engine
    monkeypatch.setattr(minirl.run, "build_engine", lambda *a, **k: OtherRouters(build(*a, **k), lambda same: same))
    row = rows(start(outputs, *SHORT, "algo.routing=r3", "prompts_per_mini_batch=16")[1])[0]
    assert 0.01 < row["routing/disagree_token_layer"] < 0.3
    assert row["mismatch/kl_k3"] < 0.8 * row["mismatch_live/kl_k3"]


def test_a_resumed_run_is_checked_again(outputs, tamper):
    """Another process may have another engine: the first rollout after a resume is looked at, wherever it is."""
    words = [*SHORT, "algo.routing=r2", "metrics.live_every=4", "eval.every=4", "num_updates=4"]
    seen = []
    tamper(lambda rollouts: one_layer_off(rollouts) if seen.append(1) or len(seen) == 2 else rollouts)
    state, folder = start(outputs, *words)
    assert state is State.finished and len(seen) == 2  # version 2 of one process: engine and trainer may have drifted
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 5
    (folder / "checkpoints" / "4").rename(folder / "gone")
    record = RunRecord(folder)
    record.update(state=State.interrupted)
    seen.clear()
    tamper(one_layer_off)
    with pytest.raises(DisplacedRoutes, match="in layer 1"):
        start(outputs, *words)


@pytest.mark.parametrize("routing", ["r2", "r3"])
def test_every_arm_trains_under_activation_checkpointing_as_without(outputs, routing):
    plain, recomputed = (
        rows(start(outputs, *SHORT, f"algo.routing={routing}", f"train.activation_checkpointing={on}")[1])
        for on in ("false", "true")
    )
    assert plain[-1].keys() == recomputed[-1].keys() and len(plain) == 3
    for name, value in plain[1].items():
        assert recomputed[1][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    assert torch.tensor(plain[1]["optim/grad_norm"]) > 0
