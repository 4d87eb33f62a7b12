"""How a command ends: its exit codes, and errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


@contextmanager
def reported(context: typer.Context) -> Iterator[None]:
    """Errors in one line and as an exit code: 1 a run failed, 2 bad input, 130 Ctrl-C."""
    from minirl.config import ConfigError, TargetMissed

    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped: repeat the command to go on", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if context.obj or isinstance(error, typer.Exit):
            raise
        explained = isinstance(error, ConfigError | TargetMissed)
        typer.echo(f"error: {error}" if explained else f"{type(error).__name__}: {error}", err=True)
        if not explained:
            typer.echo("`minirl --debug ...` shows where", err=True)
        raise typer.Exit(BAD_INPUT if isinstance(error, ConfigError) else FAILED) from None
