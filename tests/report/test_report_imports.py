"""Logs of other stacks: formats, recognition, names, signs, steps, and what is refused."""

import csv
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from minirl.cli import app
from minirl.config import ConfigError
from minirl.report.compare import comparison
from minirl.report.dictionary import ENTRIES, columns
from minirl.report.glossary import page
from minirl.report.imports import caveats, read_import
from minirl.report.logs import log_file, read_log
from minirl.report.read import Run
from minirl.report.stacks import FALSE_FRIENDS, STACKS

ROOT = Path(__file__).resolve().parents[2]


def concrete(name: str) -> str:
    """A name that the pattern stands for."""
    return name.replace("*", "aime")


def rows_of(stack: str, num_steps: int = 6) -> list[dict[str, float]]:
    """One row per step with every metric of the stack, value = step + place of the metric in the table / 100."""
    spec = STACKS[stack]
    found = []
    for step in range(spec.first_step, spec.first_step + num_steps):
        row = {column: float(step) for names in spec.steps.values() for column in names[:1]}
        row |= {concrete(name.name): step + place / 100 for place, (_, name) in enumerate(columns(stack))}
        found.append(row)
    return found


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("stack", STACKS)
def test_every_name_of_every_stack_is_read_as_ours(tmp_path: Path, stack: str) -> None:
    run = read_import(jsonl(tmp_path / "log.jsonl", rows_of(stack)))
    assert (run.record["stack"], run.state) == (stack, "imported")
    first = STACKS[stack].first_step
    for place, (entry, name) in enumerate(columns(stack)):
        curve = run.curves[entry.ours]
        steps = curve.versions if entry.ours.startswith("eval/") else curve.versions + first
        assert curve.values.tolist() == pytest.approx([name.factor * (step + place / 100) for step in steps.tolist()])
        assert len(curve) == 6
    assert set(caveats(run)) <= set(run.curves)


def test_signs_are_those_of_the_formulas(tmp_path: Path) -> None:
    """What verl 0.9.1 computes, written out from its definitions, against our definitions on the same tokens."""
    random = np.random.default_rng(0)
    mu, old, new = np.log(random.uniform(0.1, 0.9, size=(3, 500)))
    theirs = {
        "training/global_step": 1,
        "rollout_corr/kl": np.mean(mu - old),
        "rollout_corr/k3_kl": np.mean(np.exp(old - mu) - (old - mu) - 1),
        "actor/ppo_kl": np.mean(-(new - old)),
        "rollout_corr/ppl_ratio": np.exp(np.mean(mu) - np.mean(old)),
    }
    run = read_import(jsonl(tmp_path / "verl.jsonl", [theirs]))
    d = old - mu
    ours = {
        "mismatch/kl_k1": np.mean(-d),
        "mismatch/kl_k3": np.mean(np.expm1(d) - d),
        "staleness/log_ratio_mean": np.mean(new - old),
        "mismatch/ppl_ratio": np.exp(np.mean(-d)),
    }
    assert {name: float(run.curves[name].values[0]) for name in ours} == pytest.approx(ours)
    assert ours["mismatch/kl_k1"] * ours["staleness/log_ratio_mean"] != 0


def test_nothing_is_read_from_false_friends() -> None:
    for stack, names in FALSE_FRIENDS.items():
        for name in names:
            assert not any(known.matches(name) for _, known in columns(stack)), (stack, name)


def test_evaluations_stand_at_the_steps_that_their_weights_have_had(tmp_path: Path) -> None:
    rows = [{"step": 0, "data": {"val-core/aime/acc/mean@32": 0.1}}]
    rows += [{"step": step, "data": {"critic/score/mean": step / 10, "actor/entropy": 1.0}} for step in (1, 2, 3)]
    rows[-1]["data"] |= {"val-core/aime/acc/mean@32": 0.3, "val-core/gsm/acc/mean@4": 0.5}  # type: ignore[operator]
    run = read_import(jsonl(tmp_path / "verl.jsonl", rows))  # as verl's own file logger nests them
    assert run.curves["reward/mean"].versions.tolist() == [0, 1, 2]
    assert run.curves["eval/avg"].versions.tolist() == [0, 3]
    assert run.curves["eval/avg"].values.tolist() == pytest.approx([0.1, 0.4])  # two data sources: their mean


def test_updates_of_a_batch_are_averaged_where_a_stack_numbers_both(tmp_path: Path) -> None:
    rows = [{"rollout/step": step, "rollout/raw_reward": step / 10} for step in range(3)]
    rows += [{"train/step": step, "train/ppo_kl": float(step), "train/grad_norm": 1.0} for step in range(6)]
    rows += [{"eval/step": 2, "eval/aime": 0.5, "eval/aime-truncated_ratio": 0.9}]
    run = read_import(jsonl(tmp_path / "slime.jsonl", rows))
    assert run.curves["staleness/log_ratio_mean"].versions.tolist() == [0, 1, 2]
    assert run.curves["staleness/log_ratio_mean"].values.tolist() == [-0.5, -2.5, -4.5]
    assert run.curves["eval/avg"].values.tolist() == [0.5]


def test_a_csv_export_of_wandb(tmp_path: Path) -> None:
    path = tmp_path / "export.csv"
    names = [
        "Step",
        "qwen - actor/entropy",
        "qwen - actor/entropy__MIN",
        "qwen - actor/entropy__MAX",
        "qwen - actor/lr",
    ]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([names, [1, 0.5, 0.4, 0.6, 1e-6], [2, "", "", "", 1e-6], [3, "NaN", "", "", 1e-6]])
    log = read_log(path)
    assert log.rows[0] == {"Step": 1.0, "actor/entropy": 0.5, "actor/lr": 1e-6}
    assert "actor/entropy" not in log.rows[1] | log.rows[2]


def test_the_state_of_a_trl_trainer(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    history = [{"step": step, "reward": 0.1 * step, "entropy": 0.3, "kl": 7.0, "epoch": 0.1} for step in (1, 2)]
    path.write_text(json.dumps({"global_step": 2, "log_history": [*history, {"step": 2, "eval_reward": 0.7}]}))
    run = read_import(path)
    assert run.curves["reward/mean"].values.tolist() == pytest.approx([0.1, 0.2])
    assert run.curves["eval/avg"].versions.tolist() == [2]
    assert not [name for name in run.curves if "kl" in name]


def test_an_offline_wandb_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written by W&B itself, long enough for records over several of its blocks; then torn."""
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_SILENT", "true")
    import wandb

    with wandb.init(
        project="p", name="qwen", mode="offline", dir=tmp_path, config={"algorithm": {"gamma": 1.0}, "seed": 3}
    ) as run:
        for step in range(1, 301):
            run.log({"actor/entropy": 1 / step, "critic/score/mean": 0.5, "pad": "x" * 200}, step=step)
    [folder] = (tmp_path / "wandb").glob("offline-run-*")
    [file] = folder.glob("*.wandb")
    deadline = time.monotonic() + 30
    while len(read_log(file).rows) < 300 and time.monotonic() < deadline:
        time.sleep(0.1)  # W&B writes the last records after it has said that it has finished
    assert log_file(str(folder)) is not None
    found = read_import(log_file(str(folder)) or folder)
    assert found.record["stack"] == "verl"
    assert found.record["name"] == "qwen"
    assert found.config["algorithm.gamma"] == 1.0
    assert found.curves["entropy/mean"].versions.tolist() == list(range(300))
    assert found.curves["entropy/mean"].values.tolist() == pytest.approx([1 / step for step in range(1, 301)])
    content = file.read_bytes()
    assert len(content) > 3 * 32768
    torn = tmp_path / "torn.wandb"
    torn.write_bytes(content[: len(content) // 2])
    half = read_import(torn).curves["entropy/mean"]
    assert 50 < len(half) < 250
    assert half.values.tolist() == pytest.approx([1 / (version + 1) for version in half.versions.tolist()])


REFUSED = {
    "log.txt": ("step 1 loss 2", "is no log that can be read"),
    "none.jsonl": ("", "holds no numbers"),
    "text.jsonl": ("loss: 2\n", "line 1 is not JSON"),
    "list.jsonl": ("[1, 2]\n", "line 1 is no object"),
    "strange.jsonl": ('{"step": 1, "loss": 2.0}\n', "no metric of verl"),
    "bytes.csv": (b"\xff\xfe\x00\x01", "cannot be read as .csv"),
    "two.csv": ("Step,a - actor/entropy,b - actor/entropy\n1,2,3\n", "holds 2 runs (a, b"),
    "trainer_state.json": ('{"global_step": 2}', "has no log_history"),
    "broken.json": ("{", "cannot be read as .json"),
    "fake.wandb": ("history", "is no W&B file"),
    "unclear.jsonl": ('{"step": 1, "optim/lr": 1.0, "actor/lr": 2.0}\n', "export more columns"),
    "stepless.jsonl": ('{"actor/entropy": 1.0, "actor/lr": 2.0}\n', "no column counts its steps"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_log_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    content, message = REFUSED[name]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=re.escape(message)) as refusal:
        read_import(path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_runs_of_two_stacks_are_compared_by_batch(tmp_path: Path) -> None:
    def log(name: str, fallen: float) -> Run:
        random = np.random.default_rng(len(name))
        rows = []
        for step in range(1, 101):
            fall = fallen * max(0.0, (step - 50) / 50)
            rows.append(
                {
                    "training/global_step": step,
                    "actor/entropy": 0.4 - 0.3 * fall + 0.01 * random.normal(),
                    "rollout_corr/kl": 0.003 * (1 + 9 * fall) + 2e-4 * random.normal(),
                    "critic/score/mean": 0.5 - 0.4 * fall + 0.02 * random.normal(),
                }
            )
        return read_import(jsonl(tmp_path / f"{name}.jsonl", rows))

    found = comparison([log("healthy", 0.0), log("falling", 1.0)])
    assert found.axis == "rollout batches"
    [partings] = found.partings
    assert {one.metric for one in partings} == {"entropy/mean", "mismatch/kl_k1", "reward/mean"}
    assert partings[0].metric == "mismatch/kl_k1"
    assert all(49 <= one.version <= 75 for one in partings)
    assert {one.metric for one in found.alarms[1]} >= {"mismatch/kl_k1"}
    assert found.alarms[0] == ()


def test_the_command_takes_runs_and_logs(tmp_path: Path) -> None:
    paths = [str(jsonl(tmp_path / f"{stack}.jsonl", rows_of(stack, 30))) for stack in ("verl", "slime", "trl")]
    done = CliRunner().invoke(app, ["compare", *paths])
    assert done.exit_code == 0, done.stderr
    assert "Configurations of different stacks are not compared key by key." in done.stdout
    assert "trl trl: its steps are updates, the axis is rollout batches" in done.stdout
    assert re.search(r"^stack +verl +slime +trl$", done.stdout, re.M)
    one = CliRunner().invoke(app, ["compare", paths[0]])
    assert (one.exit_code, one.stderr) == (2, f"error: compare {paths[0]}: name two runs or more\n")
    (tmp_path / "empty.csv").write_text("")
    bad = CliRunner().invoke(app, ["compare", paths[0], str(tmp_path / "empty.csv")])
    assert bad.exit_code == 2
    assert bad.stderr.startswith(f"error: {tmp_path / 'empty.csv'} holds no numbers")
    assert bad.stderr.count("\n") == 1


def test_the_dictionary_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "metric_dictionary.md").read_text(encoding="utf-8") == page(), "make docs"


def test_every_name_of_ours_is_logged_and_every_stack_has_the_main_ones() -> None:
    logged = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") + "`eval/avg`"
    assert all(f"`{entry.ours}`" in logged for entry in ENTRIES)
    assert len({entry.ours for entry in ENTRIES}) == len(ENTRIES)
    for stack in STACKS:
        ours = {entry.ours for entry, _ in columns(stack)}
        assert {"reward/mean", "eval/avg", "entropy/mean", "length/mean", "optim/grad_norm"} <= ours, stack
        assert any(name.startswith("mismatch/") for name in ours), stack
