"""What differs, what did nothing, what confounds: each rule switched on and off by the data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sweep_in_memory import Points, arm, run, sweep
from synthetic_sweep import ARMS, write_sweep

from minirl.report.accounting import account, phases
from minirl.report.confounders import cautions, confounded
from minirl.report.differences import differences, identity_keys, shown
from minirl.report.inert import RULES, inert_switches
from minirl.report.read import Arm, read_sweep

FLAT = dict.fromkeys(range(0, 100, 10), 0.0)
SOME = FLAT | {50: 0.01}
ON: dict[str, Any] = {
    "num_mini_batches": 4,
    "algo.trust_region.kind": "ratio",
    "algo.trust_region.anchor": "old",
    "algo.is_weight.product.high": 5.0,
    "algo.is_weight.staleness.level": "token",
    "algo.is_weight.discrepancy.level": "token",
    "algo.reject.level": "sequence",
    "algo.reject.groups": "all",
    "algo.reject.truncated": "keep",
    "algo.routing": "r3",
    "train.optim.clip": "global_norm",
    "train.optim.max_norm": 1.0,
}
BUSY: dict[str, Points] = {
    "clip/fraction": SOME,
    "is_weight/capped": SOME,
    "reject/fraction": SOME,
    "routing/replayed": SOME,
    "routing/disagree_token_layer": SOME,
    "mismatch/logprob_abs_diff": SOME,
    "optim/clipped": SOME,
}


def one_arm(config: Mapping[str, Any], metrics: Mapping[str, Points]) -> list[Arm]:
    quiet = run(1, dict.fromkeys(metrics, FLAT), config=config)
    return [arm("A", [run(0, metrics, config=config), quiet])]  # one busy run is enough not to be inert


def inert(config: Mapping[str, Any], metrics: Mapping[str, Points]) -> set[str]:
    return {key for one in inert_switches(sweep(one_arm(config, metrics))) for key in one.keys}


def test_nothing_is_inert_where_all_is_busy() -> None:
    assert inert(ON, BUSY) == set()


@pytest.mark.parametrize(
    ("metric", "key"),
    [
        ("clip/fraction", "algo.trust_region.kind"),
        ("is_weight/capped", "algo.is_weight.product.high"),
        ("reject/fraction", "algo.reject.level"),
        ("routing/replayed", "algo.routing"),
        ("routing/disagree_token_layer", "algo.routing"),
        ("mismatch/logprob_abs_diff", "algo.is_weight.discrepancy.level"),
        ("optim/clipped", "train.optim.clip"),
    ],
)
def test_a_switch_is_inert_where_its_metric_never_moves(metric: str, key: str) -> None:
    assert key in inert(ON, BUSY | {metric: FLAT})
    assert len(inert(ON, BUSY | {metric: FLAT})) <= 2  # its own keys and no other's
    without = {name: points for name, points in BUSY.items() if name != metric}
    assert inert(ON, without) == set()  # what was never measured is not said to be 0


def test_a_switch_that_is_off_is_not_inert() -> None:
    off = ON | {
        "algo.trust_region.kind": "none",
        "algo.is_weight.product.high": None,
        "algo.is_weight.staleness.level": "none",
        "algo.is_weight.discrepancy.level": "none",
        "algo.reject.level": "none",
        "algo.routing": "live",
        "train.optim.clip": "none",
    }
    assert inert(off, dict.fromkeys(BUSY, FLAT)) == set()


def test_inert_by_construction_on_policy() -> None:
    assert inert(ON | {"num_mini_batches": 1, "algo.routing": "r2"}, BUSY) == {
        "algo.routing",
        "algo.is_weight.staleness.level",
    }


def test_every_rule_was_seen_to_speak() -> None:
    quiet = dict.fromkeys(BUSY, FLAT)
    found = inert_switches(sweep(one_arm(ON | {"num_mini_batches": 1}, quiet)))
    assert len(found) == len(RULES)


def test_arms_share_one_entry_for_the_same_inert_switch() -> None:
    quiet = dict.fromkeys(BUSY, FLAT)
    arms = [arm(name, [run(0, quiet, config=ON)]) for name in ("A", "B")]
    assert {one.arms for one in inert_switches(sweep(arms))} == {("A", "B")}


def test_only_what_differs_is_listed(tmp_path: Path) -> None:
    found = differences(read_sweep(write_sweep(tmp_path / "s", seeds=[0, 1], missing=[("R2", 0)])))
    assert {one.key: one.values for one in found} == {
        "algo.routing": {"MiniRL": ("live",), "no clipping": ("live",), "R2": ("r2",), "R3": ("r3",)},
        "algo.trust_region.kind": {"MiniRL": ("ratio",), "no clipping": ("none",), "R2": ("ratio",), "R3": ("ratio",)},
        "algo.trust_region.low": {"MiniRL": ("0.2",), "no clipping": ("null",), "R2": ("0.2",), "R3": ("0.2",)},
        "algo.trust_region.high": {"MiniRL": ("0.27",), "no clipping": ("null",), "R2": ("0.27",), "R3": ("0.27",)},
    }
    assert all(one.in_identity for one in found)


def test_values_are_shown_as_typed() -> None:
    values = (None, True, 1e-15, 0.27, 5.0, 3, "r3", [])
    assert [shown(value) for value in values] == ["null", "true", "1e-15", "0.27", "5", "3", "r3", "[]"]


def test_the_schema_says_what_belongs_to_identity() -> None:
    marked = identity_keys()
    assert marked["algo.trust_region.kind"]
    assert not marked["num_updates"]
    assert not marked["eval.num_samples"]


def two_arms(one: Mapping[str, Any], other: Mapping[str, Any], **metrics: tuple[float, float]) -> list[Arm]:
    arms = []
    for place, (name, config) in enumerate((("A", one), ("B", other))):
        values = {key.replace("__", "/"): {0: pair[place], 50: pair[place]} for key, pair in metrics.items()}
        arms.append(arm(name, [run(seed, values, config=config) for seed in range(2)]))
    return arms


def found_cautions(arms: list[Arm]) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    return [(one.text, one.pairs) for one in cautions(sweep(arms), differences(sweep(arms)))]


def test_clipped_shares_apart_confound() -> None:
    [(text, pairs)] = found_cautions(two_arms({}, {}, optim__clipped=(0.99, 0.85)))
    assert "A 99%, B 85%" in text
    assert pairs == (("A", "B"),)
    assert found_cautions(two_arms({}, {}, optim__clipped=(0.99, 0.91))) == []
    everything = cautions(sweep(two_arms({}, {}, optim__clipped=(0.99, 0.85))), [])
    assert confounded(["A", "B", "C"], everything) == everything
    assert confounded(["A", "C"], everything) == []


def test_a_loss_scale_confounds_under_a_clipped_norm_only() -> None:
    clip = {"train.optim.clip": "global_norm"}
    token_sum, token_mean = ({"algo.aggregation.kind": f"seq_mean_token_{kind}"} for kind in ("sum", "mean"))
    [(text, pairs)] = found_cautions(two_arms(clip | token_sum, clip | token_mean, optim__grad_norm=(3.0, 0.2)))
    assert "A 3, B 0.2" in text
    assert pairs == (("A", "B"),)
    none = {"train.optim.clip": "none"}
    assert found_cautions(two_arms(none | token_sum, none | token_mean, optim__grad_norm=(3.0, 0.2))) == []
    assert found_cautions(two_arms(clip | token_sum, clip | token_sum, optim__grad_norm=(3.0, 0.2))) == []


def test_other_evaluations_or_horizons_confound_and_checkpoints_do_not() -> None:
    [(text, pairs)] = found_cautions(two_arms({"eval.num_samples": 2}, {"eval.num_samples": 8}))
    assert text == "eval.num_samples is not the same for all arms: A 2, B 8"
    assert pairs == (("A", "B"),)
    [(_, pairs)] = found_cautions(two_arms({"train.checkpoint_every": 2}, {"train.checkpoint_every": 8}))
    assert pairs == ()


def test_seeds_of_an_arm_that_disagree(tmp_path: Path) -> None:
    runs = [run(seed, {}, config={"train.optim.lr": lr}) for seed, lr in ((0, 1e-3), (1, 2e-3))]
    arms = [arm("A", runs), arm("B", [run(0, {}, config={"train.optim.lr": 1e-3})])]
    texts = [text for text, _ in found_cautions(arms)]
    assert "the seeds of A do not agree in train.optim.lr: 0.001 and 0.002" in texts


def test_records_that_disagree(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", arms={name: ARMS[name] for name in ("MiniRL", "R3")}, seeds=[0, 1])
    changed = sorted(folder.glob("*-s1/run.json"))[0]
    text = (
        changed.read_text()
        .replace("3c52fe9", "0000000")
        .replace("2.13.0", "2.14.0")
        .replace("0badcafe00112233", "feed")
    )
    changed.write_text(text)
    found = read_sweep(folder)
    texts = " / ".join(one.text for one in cautions(found, differences(found)))
    assert "2 versions of the code: 3c52fe9d (3 runs), 0000000d (1 run)" in texts
    assert "different versions of torch" in texts
    assert "2 different cold starts" in texts


def test_accounts_are_sums_over_a_run_and_means_over_seeds() -> None:
    metrics = {
        "time/rollout": {0: 1.0, 4: 3.0},
        "time/rollout_cpu": {0: 9.0},
        "time/update": {0: 2.0, 1: 2.0},
        "tokens/response": {0: 100.0, 4: 300.0},
        "optim/grad_norm": {0: 1.0, 1: 1.0, 2: 1.0},
    }
    spent = account(arm("A", [run(0, metrics), run(1, {"time/rollout": {0: 2.0}}), run(2, {})]))
    assert spent is not None
    assert (spent.num_runs, spent.num_updates) == (2, 1.5)
    assert spent.seconds == {"rollout": 3.0, "update": 2.0}
    assert spent.tokens == {"response": 200.0}
    assert phases([spent]) == ["rollout", "update"]
    assert account(arm("A", [run(2, {})])) is None
