"""The commands as a person meets them: exit codes, one-line errors, completion, nothing heavy before it is needed."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from minirl import completion
from minirl.cli import app
from minirl.compose import load
from minirl.suggest import schema_keys

COMMANDS = ("run", "sweep", "status", "report", "compare", "coldstart", "eval", "show")
HEAVY = ("torch", "hydra", "wandb", "transformers", "omegaconf", "matplotlib", "numpy")


def invoke(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, list(words))


def test_help_names_the_commands_and_imports_nothing_heavy() -> None:
    code = """
import sys
from minirl.cli import app
try:
    app(["--help"])
except SystemExit as end:
    assert not end.code
print("LOADED", *sorted(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    text, _, loaded = done.stdout.partition("LOADED")
    assert all(f" {name} " in text for name in COMMANDS)
    assert [name for name in HEAVY if name in loaded.split()] == []


def test_bad_input_is_told_without_torch() -> None:
    code = """
import sys
from minirl.cli import app
try:
    app(["run", "algo=grop"])
except SystemExit as end:
    print(end.code, "torch" in sys.modules, "transformers" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False", "False"]
    assert done.stderr == "error: algo=grop: no such algo; did you mean grpo?\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "algo.rooting=r2"], "did you mean algo.routing?"),
        (["run", "seed=0,1"], "use `minirl sweep`"),
        (["run", "group_size=1"], "every advantage is 0"),
        (["run", "--config-dir", "nowhere"], "--config-dir nowhere: no such folder"),
        (["coldstart", "task=adition"], "did you mean addition?"),
        (["show", "model=tiny_mo"], "did you mean tiny_moe"),
        (["show", "--group", "algos"], "did you mean algo?"),
        (["sweep", "quikstart"], "did you mean quickstart"),
        (["sweep", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["sweep", "quickstart", "algo=grop", "--dry-run"], "did you mean grpo?"),
        (["sweep", "quickstart", "experiment=toy,tooy", "--dry-run"], "a sweep has one experiment"),
        (["sweep", "quickstart", "seed=a,b", "--dry-run"], "expected whole numbers"),
        (["sweep", "quickstart", "run.name=x", "--dry-run"], "run.name is the name of the arm"),
        (["sweep", "quickstart", "eval.every=4", "--dry-run"], "eval.every=4 is not a multiple of num_mini_batches=8"),
        (["status"], "no run in"),
        (["status", "quickstart"], "no sweep or run of this name"),
        (["report", "quickstart"], "no sweep of this name"),
        (["compare", "a", "b"], "no run of this name"),
        (["report"], "no sweep in"),
        (["eval", "nowhere"], "no run of this name"),
    ],
)
def test_bad_input_ends_with_2_and_one_line(words: list[str], expected: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ") and expected in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_unknown_option_is_a_usage_error() -> None:
    assert invoke("run", "--sed", "3").exit_code == 2
    assert invoke("nonsense").exit_code == 2


def test_debug_shows_where_an_error_comes_from() -> None:
    result = invoke("--debug", "run", "algo=grop")
    assert result.exit_code == 1 and type(result.exception).__name__ == "ConfigError"


def test_show_prints_a_configuration_that_composes_to_itself(own_folder: Path) -> None:
    from minirl.compose import read

    result = invoke("show", "algo=grpo", "seed=3", "model.path=null")
    assert result.exit_code == 0
    (own_folder / "shown.yaml").write_text(result.stdout)
    assert read(own_folder / "shown.yaml") == load(["algo=grpo", "seed=3"])
    assert "note: the trust region is inert" in result.stderr


def test_show_lists_a_groups_choices_with_their_first_line() -> None:
    lines = invoke("show", "--group", "algo").stdout.splitlines()
    assert len(lines) >= 22
    assert any(line.startswith("minirl ") and "eq 7" in line for line in lines)
    assert any(line.startswith("gspo ") and "GSPO" in line for line in lines)


@pytest.fixture
def figure(own_folder: Path) -> str:
    """A sweep file of our own, whose numbers nobody tunes."""
    (own_folder / "figure.yaml").write_text(
        "base: [num_mini_batches=8, prompts_per_mini_batch=16, num_updates=96, eval.num_problems=128]\n"
        "arms: {clip: [algo=minirl], 'no clip, fp32': [algo=minirl_no_clip, engine.numerics=fp32]}\n"
    )
    return "figure.yaml"


def test_dry_run_says_what_would_be_run(figure: str) -> None:
    """Prompts, responses, updates per batch, on-policy or not, tokens, the evaluation as it takes effect, and a line
    to type."""
    result = invoke("sweep", figure, "--dry-run")
    assert result.exit_code == 0, result.output
    text = result.output
    for said in ("updates per", "batch", "on-", "policy", "tokens per", "parameters", "checkpoints a run", "routes ≤"):
        assert said in text
    row = next(line for line in text.splitlines() if line.strip().startswith("clip "))
    assert row.split()[2:] == ["128", "1024", "8", "no", "12288"]
    assert "eval every 8 of 96 updates: 128 problems x 2 samples, temperature 1, at most 12 tokens, fp32" in text
    assert "minirl run num_mini_batches=8 prompts_per_mini_batch=16" in text
    assert not Path("outputs").exists()


def test_a_line_of_the_dry_run_composes_to_the_arm(figure: str) -> None:
    text = invoke("sweep", figure, "--dry-run").output
    line = next(line for line in text.splitlines() if "minirl run" in line and "fp32" in line)
    assert "\"run.name='no clip, fp32'\"" in line
    config = load(shlex.split(line)[2:])
    assert config.run.name == "no clip, fp32" and config.run.group == "figure"
    assert config.engine.numerics == "fp32" and config.algo.name == "minirl_no_clip"


def test_a_fault_of_ours_within_a_sweep_is_no_bad_input(figure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ValueError of the program is a failure with its class named; one of composition stays bad input."""
    from minirl.sweep.command import SweepCommand

    def faulty(command: SweepCommand, arguments: list[str]) -> int:
        raise ValueError("a fault of the program")

    monkeypatch.setattr(SweepCommand, "run", faulty)
    result = invoke("sweep", figure)
    assert result.exit_code == 1 and result.stderr.startswith("ValueError: a fault of the program")
    assert invoke("sweep", figure, "engine=nothing").exit_code == 2
    assert invoke("sweep", figure, "algo=[").exit_code == 2


def test_dry_run_shows_what_evaluation_takes_from_sampling(figure: str) -> None:
    inherited = ("sampling.temperature=0.7", "sampling.max_response_tokens=20")
    assert "temperature 0.7, at most 20 tokens" in invoke("sweep", figure, *inherited, "--dry-run").output
    own = ("eval.temperature=0", "eval.max_response_tokens=30", "eval.numerics=bf16")
    assert "temperature 0, at most 30 tokens, bf16 numerics" in invoke("sweep", figure, *own, "--dry-run").output


def test_dry_run_names_arms_that_are_one(own_folder: Path) -> None:
    (own_folder / "mine.yaml").write_text(
        "arms: {a: [], b: [algo=minirl_no_clip], c: [algo.advantage=leave_one_out], d: [algo.routing=r3]}\n"
        "exclude: [{when: {algo.routing: r3}, reason: not now}]\n"
    )
    text = invoke("sweep", "mine.yaml", "--dry-run").output
    assert "same as a: one run, shown twice" in text
    assert "same up to a constant factor of the loss as a" in text
    assert "excluded: not now" in text


def write_plan(folder: Path, states: dict[str, str]) -> None:
    cells = [
        {"arm": arm, "seed": 0, "identity": arm, "folder": str(folder / f"{arm}-s0"), "overrides": [],
         "same_as": None, "excluded": None}
        for arm in states
    ]  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "sweep.json").write_text(json.dumps({"name": folder.name, "cells": cells}))
    for arm, state in states.items():
        (folder / f"{arm}-s0").mkdir()
        record = {"state": state, "num_updates": 8, "pid": os.getpid(), "host": "elsewhere", "cpu_seconds": 1.0}
        (folder / f"{arm}-s0" / "run.json").write_text(json.dumps(record))


def test_status_of_the_latest_sweep_and_of_a_named_one(own_folder: Path) -> None:
    write_plan(own_folder / "outputs" / "sweeps" / "first", {"a": "finished"})
    write_plan(own_folder / "outputs" / "sweeps" / "second", {"a": "finished", "b": "failed"})
    os.utime(own_folder / "outputs" / "sweeps" / "first" / "sweep.json", (1, 1))
    latest, named = invoke("status"), invoke("status", "first")
    assert latest.exit_code == named.exit_code == 0
    assert "second" in latest.stdout and "FAILED" in latest.stdout and "FAILED" not in named.stdout
    tree = json.loads(invoke("status", "--json").stdout)
    assert tree["sweep"] == "second" and [run["state"] for run in tree["runs"]] == ["finished", "failed"]
    assert invoke("status", "secnd").exit_code == 2
    assert "did you mean second" in invoke("status", "secnd").stderr


def test_watching_ends_when_all_is_done_with_1_if_a_run_failed(own_folder: Path) -> None:
    write_plan(own_folder / "outputs" / "sweeps" / "good", {"a": "finished", "b": "collapsed"})
    write_plan(own_folder / "outputs" / "sweeps" / "bad", {"a": "finished", "b": "failed"})
    assert invoke("status", "good", "--watch").exit_code == 0
    assert invoke("status", "bad", "--watch").exit_code == 1


def in_bash(line: str) -> list[str]:
    """What bash is offered at the end of a line, which it cuts at = as well as at blanks."""
    words = line.replace("=", " = ").split()
    current = words[-1] if not line.endswith((" ", "=")) else ""
    count = len(words) - (1 if current or line.endswith("=") else 0)
    environment = os.environ | {
        "_MINIRL_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(count),
    }
    code = "from minirl.cli import app; app(prog_name='minirl')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    return done.stdout.split()


def test_bash_completes_commands_sweeps_groups_and_choices() -> None:
    assert in_bash("minirl sw") == ["sweep"]
    assert "quickstart" in in_bash("minirl sweep quick")
    assert "algo=" in in_bash("minirl run al")
    assert in_bash("minirl run algo=gr") == ["grpo", "grpo_mu"]
    assert in_bash("minirl show --group mo") == ["model"]


def test_other_shells_complete_the_whole_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("_MINIRL_COMPLETE", raising=False)
    assert completion.overrides("algo=gr") == ["algo=grpo", "algo=grpo_mu"]
    assert completion.overrides("algo.routing=r") == ["algo.routing=r2", "algo.routing=r3"]
    assert completion.overrides("algo.reject.counted=") == ["algo.reject.counted=true", "algo.reject.counted=false"]
    assert completion.overrides("algo.trust_region.k") == ["algo.trust_region.kind="]
    assert {f"{key}=" for key in schema_keys()} <= set(completion.overrides(""))
    assert completion.overrides("no.such.key=") == []
    monkeypatch.setenv("_MINIRL_COMPLETE", "complete_bash")
    for words, index, expected in (
        ("minirl run algo =", "3", ["minirl", "mis"]),
        ("minirl run algo = mi", "4", ["minirl", "mis"]),
    ):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", index)
        assert set(expected) <= set(completion.overrides(""))


def test_sweeps_on_disk_are_completed(own_folder: Path) -> None:
    write_plan(own_folder / "outputs" / "sweeps" / "mine", {"a": "finished"})
    assert completion.swept("m") == ["mine"] and "quickstart" in completion.sweep_files("q")
