"""The command line. Everything heavy is imported inside the commands: `minirl --help` loads neither torch nor Hydra."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from minirl import completion
from minirl.arguments import RESULTS, ConfigDirs, NewOutputs, Outputs, Overrides
from minirl.exits import FAILED, reported

app = typer.Typer(
    help="Is my RL stable, and which ingredient makes it so? Ablations of RL for language models, run and judged.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def main(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    context.obj = debug


@app.command()
def run(
    context: typer.Context,
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    outputs: NewOutputs = None,
) -> None:
    """One run: trains until its last update, or goes on where it stopped."""
    with reported(context):
        from minirl.compose import compose, typed
        from minirl.validate import validate

        words = [*(overrides or []), *_placed(outputs)]
        cfg = compose(words, config_dir or ())
        validate(typed(cfg))  # before torch is imported: bad input is told at once

        from minirl import run as training

        state = training.run(cfg, words)
        typer.echo(f"{state}")
        if state == "interrupted":
            raise KeyboardInterrupt  # asked to stop, as by Ctrl-C


def _placed(outputs: Path | None) -> list[str]:
    """The override that `--outputs` stands for."""
    from minirl.compose import override

    return [] if outputs is None else [override("run.outputs", str(outputs))]


@app.command()
def sweep(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(help="A sweep of ours, or a .yaml file.", autocompletion=completion.sweep_files)
    ],
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Compose and check every arm; say what would be run.")
    ] = False,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Runs side by side.")] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="The first failure stops the others.")] = False,
    config_dir: ConfigDirs = None,
    outputs: NewOutputs = None,
) -> None:
    """All runs of a figure, side by side. Repeating the command runs what is missing and nothing else."""
    with reported(context):
        from minirl.compose import override
        from minirl.sweep.file import find
        from minirl.sweep.job import task
        from minirl.sweep.multirun import multirun

        options = [override("hydra.sweeper.file", str(find(name).resolve()))]
        options += ["hydra.sweeper.dry_run=true"] if dry_run else []
        options += [f"hydra.launcher.jobs={jobs}"] if jobs else []
        options += ["hydra.launcher.fail_fast=true"] if fail_fast else []
        multirun(task, [*(overrides or []), *_placed(outputs), *options], config_dir or ())


@app.command()
def status(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[SWEEP|RUN]",
            help="The latest, if none is named; runs: all single ones.",
            autocompletion=completion.swept,
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Until no run is pending or running.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    outputs: Outputs = RESULTS,
) -> None:
    """How runs stand, also from another shell while they run: of a sweep, or of `minirl run`."""
    with reported(context):
        from rich.console import Console

        from minirl.sweep import overview

        if as_json:
            typer.echo(json.dumps(overview.look(name, outputs).tree()))
        elif not overview.show(name, outputs, Console(), watch=watch) and watch:
            raise typer.Exit(FAILED)


@app.command()
def report(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[SWEEP]", help="The latest, if none is named.", autocompletion=completion.swept),
    ] = None,
    wandb: Annotated[bool, typer.Option("--wandb", help="Also as a W&B report; needs WANDB_API_KEY.")] = False,
    draft: Annotated[bool, typer.Option("--draft", help="The W&B report as a draft.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="With --wandb: write its specification there instead, without network.")
    ] = None,
    outputs: Outputs = RESULTS,
) -> None:
    """One page that compares the arms of a sweep, with a verdict on each of its claims."""
    with reported(context):
        from rich.console import Console

        from minirl.report import terminal, wandb_report
        from minirl.sweep.status import find_sweep, set_right

        wandb_report.refuse_options(wandb=wandb, draft=draft, out=out)
        folder = find_sweep(name, outputs)
        set_right(folder, lambda line: typer.echo(line, err=True))
        terminal.report(folder, Console())
        if wandb:
            for place in wandb_report.specify(folder, out) if out else wandb_report.publish(folder, draft=draft):
                typer.echo(place)


@app.command()
def sync(
    context: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Sweeps or runs: names or folders.", autocompletion=completion.swept),
    ],
    outputs: Outputs = RESULTS,
) -> None:
    """Sends to W&B what it lacks of runs, whatever their tracker was; needs WANDB_API_KEY."""
    with reported(context):
        from minirl.sweep.status import find_runs
        from minirl.tracking.send import send

        for folder in (folder for name in names for folder in find_runs(name, outputs)):
            typer.echo(f"{folder}: {send(folder) or 'no'} rows sent")


@app.command()
def compare(
    context: typer.Context,
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN RUN...", help="Folders or names of runs; logs of other stacks by their path."),
    ],
    outputs: Outputs = RESULTS,
) -> None:
    """Runs side by side: what differs in configuration and surroundings, and where their curves part.

    A log of verl, prime-rl, NeMo-RL, slime, TRL or SkyRL is a .jsonl or .csv export, a trainer_state.json or an offline
    .wandb file; docs/metric_dictionary.md says which of its metrics are read as which of ours.
    """
    with reported(context):
        from minirl.config import ConfigError

        if len(runs) < 2:
            raise ConfigError(f"compare {runs[0]}: name two runs or more")

        from rich.console import Console

        from minirl.report.compare import comparison, open_run
        from minirl.report.side_by_side import show
        from minirl.sweep.status import find_run

        show(comparison([open_run(name, lambda name: find_run(name, outputs)) for name in runs]), Console())


@app.command()
def export(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="A run's folder, or its name.")],
    to: Annotated[str, typer.Option("--to", help="hf (its weights), or the recipe for verl, trl, prime-rl, skyrl.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder of the weights; a file for a recipe, else the terminal.")
    ] = None,
    outputs: Outputs = RESULTS,
) -> None:
    """The trained weights in Hugging Face format, or the algorithm as another stack's configuration and what cannot be
    said in it."""
    with reported(context):
        if to == "hf":
            _publish(run, out, outputs)
            return
        from minirl.recipes.write import export as write
        from minirl.sweep.status import find_run

        text, made = write(find_run(run, outputs), to, out)
        typer.echo(out if out is not None else text, nl=out is not None)
        for missing in made.unexpressed:
            typer.echo(f"not expressed in {made.stack}: {missing}", err=True)


def _publish(run: str, out: Path | None, outputs: Path) -> None:
    from minirl.config import ConfigError
    from minirl.sweep.status import find_run

    if out is None:
        raise ConfigError("--to hf writes a folder: name it with --out")
    folder = find_run(run, outputs)

    from minirl.publish import publish

    typer.echo(publish(folder, out))


@app.command()
def coldstart(
    context: typer.Context, overrides: Overrides = None, config_dir: ConfigDirs = None, outputs: NewOutputs = None
) -> None:
    """The cold-start checkpoint of a configuration: made once, then shared by all runs that ask for it."""
    with reported(context):
        from minirl.compose import load
        from minirl.validate import validate

        config = load([*(overrides or []), *_placed(outputs)], config_dir or ())
        validate(config)

        import torch

        from minirl.coldstart import ensure
        from minirl.world import World

        torch.set_num_threads(config.run.num_threads)
        world = World.join(config.run.device)
        try:
            folder = ensure(config, world, typer.echo)
        finally:
            world.leave()
        typer.echo(folder.resolve())


@app.command()
def curate(
    context: typer.Context,
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The .parquet or .jsonl file to write.")],
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
) -> None:
    """The training problems that the cold start solves sometimes: the others give no gradient."""
    with reported(context):
        from minirl.compose import load
        from minirl.validate import validate

        config = load(overrides or [], config_dir or ())
        validate(config)

        from minirl.curate import curate as measured

        measured(config, target, typer.echo)


@app.command(name="eval")
def evaluate(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's name, folder or checkpoint, or a Hugging Face folder or id.")
    ],
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    outputs: Outputs = RESULTS,
) -> None:
    """avg@k and pass@k of a checkpoint on held-out problems; overrides come on top of those of its run."""
    with reported(context):
        from minirl.compose import load, override, read
        from minirl.examine import examine, run_of
        from minirl.hub import is_folder, is_hub_id
        from minirl.sweep.status import find_checkpoint
        from minirl.validate import validate

        is_model = is_folder(name) or is_hub_id(name)
        checkpoint = Path(name) if is_model else find_checkpoint(name, outputs)
        if is_model:
            config = load([override("model.path", name), *(overrides or [])], config_dir or ())
        else:
            config = read(run_of(checkpoint) / "config.yaml", overrides or [])
        validate(config)
        found = examine(config, None if is_model else checkpoint)
        for name, value in {"version": found.version, **found.figures}.items():
            typer.echo(f"{name:<24}{value:.6g}")
        for line in [*found.lines, f"every sample: {found.table}"]:
            typer.echo(line)


@app.command()
def doctor(
    context: typer.Context,
    overrides: Overrides = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint", help="A run's folder or checkpoint, or a Hugging Face folder; else the model's own."
        ),
    ] = None,
    switches: Annotated[
        str | None, typer.Option("--switches", metavar="SWEEP", help="What each switch of a sweep changes, instead.")
    ] = None,
    plot: Annotated[Path, typer.Option("--plot", help="Where the picture is written.")] = RESULTS / "doctor.png",
    config_dir: ConfigDirs = None,
) -> None:
    """What this machine has, and how far engine and trainer stand apart on real rollouts; exit code 1 if too far."""
    with reported(context):
        if switches is not None:
            from minirl.switches.command import show_switches

            show_switches(switches, overrides or [], config_dir or ())
            return
        from minirl.compose import load
        from minirl.validate import validate

        config = load(overrides or [], config_dir or ())
        validate(config)

        from rich.console import Console

        from minirl.doctor.command import diagnose

        if not diagnose(config, checkpoint, plot, Console()):
            raise typer.Exit(FAILED)


@app.command()
def rescore(
    context: typer.Context,
    batch: Annotated[Path, typer.Argument(help="RUN/rollouts/VERSION, or RUN: its latest.")],
    arms: Annotated[
        list[str] | None, typer.Argument(help="Algorithms: grpo, or 'algo=minirl algo.routing=r3'; all, if none.")
    ] = None,
    exact: Annotated[
        float | None,
        typer.Option("--exact", metavar="FLOOR", help="Enumerate all responses likelier than FLOOR as well."),
    ] = None,
    plot: Annotated[Path, typer.Option("--plot", help="Where the picture is written.")] = RESULTS / "rescore.png",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """The gradients of all algorithms on one recorded batch (run.record_rollouts=true), compared."""
    with reported(context):
        from minirl.rescore.command import show_rescored

        show_rescored(batch, arms or [], floor=exact, plot=plot, as_json=as_json)


@app.command()
def show(
    context: typer.Context,
    overrides: Overrides = None,
    group: Annotated[
        str | None,
        typer.Option("--group", help="The choices of a group instead.", autocompletion=completion.groups),
    ] = None,
    config_dir: ConfigDirs = None,
) -> None:
    """The composed, resolved configuration; notes on it go to stderr."""
    with reported(context):
        folders = config_dir or ()
        from omegaconf import OmegaConf

        from minirl.compose import compose, listed, typed
        from minirl.validate import validate

        if group is not None:
            typer.echo("\n".join(listed(group, folders)))
            return
        cfg = compose(overrides or [], folders)
        notes = validate(typed(cfg))
        typer.echo(OmegaConf.to_yaml(cfg, resolve=True), nl=False)
        for note in notes:
            typer.echo(f"note: {note}", err=True)


if __name__ == "__main__":
    sys.exit(app())
