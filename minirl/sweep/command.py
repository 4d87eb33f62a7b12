"""A sweep from a file or a command to its end: plan, cold starts, runs, summary. What our Hydra sweeper does."""

from __future__ import annotations

import json
import shlex
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from signal import SIGTERM, SIGUSR1, SIGUSR2
from types import FrameType

from hydra.core.config_loader import ConfigLoader
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, open_dict
from rich.console import Console

from minirl.accounting.machine import UnknownGpu
from minirl.compose import explained
from minirl.record import Busy, RunRecord, State
from minirl.sweep import file as sweep_file
from minirl.sweep import plan, preview
from minirl.sweep.accounts import estimates_here, refuse_crowding, refuse_what_cannot_fit
from minirl.sweep.devices import environments, gpus, num_slots
from minirl.sweep.display import code_line, table
from minirl.sweep.expand import Design, expand, improvise
from minirl.sweep.job import PRELOAD
from minirl.sweep.joint_plan import joined, stopped_early
from minirl.sweep.outcome import Life, last_words, life
from minirl.sweep.overview import announce, must_start
from minirl.sweep.plan import Cell, PlannedArm
from minirl.sweep.preflight import replaced, undecidable
from minirl.sweep.processes import Nursery, cpu_seconds
from minirl.sweep.request import EXPERIMENT, parse, scale
from minirl.sweep.starts import StartFailed, made
from minirl.sweep.status import QUEUE, Standing, read

WAIT_SECONDS = 2.0  # between looks at runs of another process
OK, FAILED, INTERRUPTED = 0, 1, 130
LAUNCHER, LOCAL = "hydra/launcher", "local"  # Hydra's choice, and that of this machine
USUAL_OUTPUTS = "outputs"  # of conf/config.yaml, where every command looks


@dataclass(frozen=True)
class SweepCommand:
    """config: Hydra's, of the command. path: of the sweep file, None for a plain multirun."""

    config: DictConfig
    loader: ConfigLoader
    launcher: Launcher
    path: Path | None
    console: Console

    def design(self, arguments: Sequence[str]) -> Design:
        """What the command asks for, before anything is composed."""
        with explained(()):
            request = parse(arguments, self.loader)
        usual = str(self.config.hydra.runtime.choices[EXPERIMENT])
        if self.path is None:
            design = improvise(scale((), request.fixed, usual), request)
        else:
            file = sweep_file.read(self.path)
            design = expand(file, scale(file.base, request.fixed, usual), request)
        if request.axes and design.claims:
            self._say("the command adds axes, so the file's claims do not fit its arms and are left out")
            design = replace(design, claims=())
        for line in replaced(design):
            self._say(line)
        return design

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        with explained(()):
            cfg = self.loader.load_sweep_config(self.config, list(overrides))
        with open_dict(cfg):
            del cfg["hydra"]
        return cfg

    def preview(self, arguments: Sequence[str]) -> int:
        """`--dry-run`: composes and validates every arm and says what would be run."""
        design = self.design(arguments)
        arms = plan.plan_arms(design, self.compose)
        starts = plan.known_starts(arms)
        cells = plan.cells(design, arms, starts)
        for line in undecidable(design, plan.gone(cells)):
            self._say(line)
        preview.show(design, arms, cells, starts, self.console)
        return OK

    def run(self, arguments: Sequence[str]) -> int:
        """The exit code. A run that has its result is not run again, so repeating the command finishes what is
        missing."""
        design = self.design(arguments)
        arms = plan.plan_arms(design, self.compose)
        with terminable():
            return self._run(design, arms)

    def _run(self, design: Design, arms: Sequence[PlannedArm]) -> int:
        try:
            starts = plan.known_starts(arms)
            self._refuse_what_cannot_fit(arms, plan.cells(design, arms, starts))
            if must_start(arms):
                starts = self._starts(design, arms)
        except StartFailed as error:
            self._say(str(error))
            return FAILED
        except KeyboardInterrupt:
            self._say("stopped during the cold start: repeat the command to begin it again")
            return INTERRUPTED
        cells, horizons = plan.cells(design, arms, starts), {each.arm.name: each.config.num_updates for each in arms}
        with joined(design, arms, starts, cells) as joint:
            if joint.lost:
                self._say(
                    f"note: {joint.lost} runs in {joint.folder} are not of this plan (other settings, another "
                    "start, fewer updates): they stay there, and the report does not show them"
                )
            try:
                self._launch(cells, horizons)
            except KeyboardInterrupt:
                self._summary(joint.folder, design.seeds, arms)
                self._say(f"stopped: repeat the command to go on; what is done stays ({joint.folder})")
                return INTERRUPTED
            return self._summary(joint.folder, design.seeds, arms)

    def _refuse_what_cannot_fit(self, arms: Sequence[PlannedArm], cells: Sequence[Cell]) -> None:
        """Where runs are started on this machine. Of a cluster's machines the one where the command runs says nothing.

        Raises ConfigError, before anything is spent."""
        horizons = {each.arm.name: each.config.num_updates for each in arms}
        open_cells = [cell for cell in cells if cell.runs and not has_result(cell, horizons[cell.arm])]
        if self.config.hydra.runtime.choices[LAUNCHER] != LOCAL or not open_cells:
            return
        names = {cell.arm for cell in open_cells}
        asked = [each for each in arms if each.arm.name in names]
        try:
            sizes = estimates_here(asked, self.config.hydra.launcher.processes)
        except UnknownGpu as error:
            self._say(f"note: whether the runs fit is not known: {error}")
            return
        refuse_what_cannot_fit(asked, sizes, open_cells)
        refuse_crowding(asked[0].config, sizes, open_cells, jobs=self._jobs)

    def _starts(self, design: Design, arms: Sequence[PlannedArm]) -> dict[str, str]:
        note = announce(arms, design.seeds)
        try:
            return self._made(arms)
        finally:
            note.unlink(missing_ok=True)  # another command may have been quicker

    def _made(self, arms: Sequence[PlannedArm]) -> dict[str, str]:
        run = arms[0].config.run
        nursery = Nursery(cuda=bool(gpus(run)), preload=PRELOAD)
        slots = num_slots(run, self._jobs, processes=1, engine_gpus=0)
        return made(arms, nursery, environments(run, slots, 1), self._say)

    @property
    def _jobs(self) -> int | None:
        return self.config.hydra.launcher.get("jobs")

    def _launch(self, cells: Sequence[Cell], horizons: Mapping[str, int]) -> None:
        """Every cell without a result, once; those that another process works on are waited for."""
        own = [cell for cell in cells if cell.runs]
        done = [cell for cell in own if has_result(cell, horizons[cell.arm])]
        if done:
            self._say(f"{len(done)} of {len(own)} runs have their result already")
        tried: set[str] = set()
        while True:
            open_cells = [cell for cell in own if cell.folder not in tried and not has_result(cell, horizons[cell.arm])]
            free = [cell for cell in open_cells if is_free(cell)]
            if not open_cells:
                return
            if not free:
                time.sleep(WAIT_SECONDS)
                continue
            if len(free) < len(open_cells):
                self._say(f"{len(open_cells) - len(free)} runs are another process's: they are waited for")
            returns = self.launcher.launch([_job(cell) for cell in free], initial_job_idx=0)
            tried |= {str(cell.folder) for cell, each in zip(free, returns, strict=True) if not was_busy(each)}
            if any(each.status.name == "UNKNOWN" for each in returns):
                return  # the launcher has stopped early (fail-fast)

    def _summary(self, folder: Path, seeds: Sequence[int], arms: Sequence[PlannedArm]) -> int:
        """How all runs of the sweep stand. The exit code is of the command's own `seeds`."""
        statuses = read(folder)
        self.console.print(table(statuses, folder.name, None))
        if (mixture := code_line(statuses)) is not None:
            self._say(mixture)
        failed = [each for each in statuses if each.state in (State.failed, Standing.lost) and each.seed in seeds]
        for each in failed:
            self._say(f"{each.state.upper()} {each.arm} s{each.seed}: {each.remark}")
            if each.folder:
                for line in last_words(Path(each.folder)):
                    self._say(f"    | {line}")
                self._say(f"    log: {each.folder}/log.txt")
        runs, starts = sum(each.cpu_seconds for each in statuses), start_seconds(arms)
        spent = cpu_seconds()
        self._say(
            f"CPU seconds: {runs + starts:.0f} in all, training {runs:.0f}, cold start {starts:.0f}; "
            f"this command {spent:.0f}"
        )
        outputs = arms[0].config.run.outputs
        place = "" if outputs == USUAL_OUTPUTS else f" --outputs {shlex.quote(outputs)}"
        following = f"next: minirl report {folder.name}{place}"
        self._say("repeat the command to run what is missing" if failed else following)
        return FAILED if failed else OK

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def terminable() -> Iterator[None]:
    """A scheduler's SIGTERM, or its notice that the time is nearly up, ends the command as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in (SIGTERM, SIGUSR1, SIGUSR2)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def has_result(cell: Cell, num_updates: int) -> bool:
    """Whether the run has come to its end; a longer horizon than it had goes on with it."""
    record = _run(cell).read()
    state = record.get("state")
    if state is None or not State(state).is_result:
        return False
    return stopped_early(State(state)) or record["num_updates"] >= num_updates


def is_free(cell: Cell) -> bool:
    """Whether the run may be handed to the launcher. A job of a scheduler may: the launcher finds it there."""
    return life(_run(cell)) is not Life.alive or (Path(str(cell.folder)) / QUEUE).exists()


def was_busy(job: JobReturn) -> bool:
    """Whether another process was quicker to take the run. Hydra's line about a job that failed is not passed on: what
    happened is told by the run's record."""
    try:
        with redirect_stderr(StringIO()):
            _ = job.return_value
    except Busy:
        return True
    except Exception:  # whatever else a job ends by is on its record
        return False
    return False


def _run(cell: Cell) -> RunRecord:
    return RunRecord(Path(str(cell.folder)))


def _job(cell: Cell) -> list[str]:
    """The overrides of a job; Hydra's own output folder is the run's, so that every launcher's logs are there."""
    folder = Path(str(cell.folder))
    place = [f"hydra.sweep.dir={json.dumps(str(folder.parent))}", f"hydra.sweep.subdir={folder.name}"]
    return [*cell.overrides, *place]


def start_seconds(arms: Sequence[PlannedArm]) -> float:
    """CPU seconds that the sweep's cold starts took, whenever they were made."""
    folders = {plan.made_start(planned.config) for planned in arms if planned.excluded is None}
    records = [folder / "coldstart.json" for folder in folders if folder is not None]
    return sum(json.loads(path.read_text())["cpu_seconds"] for path in records if path.is_file())
