"""Where an arm's seconds and tokens went: sums over a run, means over its seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from minirl.report.read import Arm, Run

PHASES = ("sync", "rollout", "reward", "old", "live", "update", "eval", "save")  # in the order of the loop


@dataclass(frozen=True, slots=True)
class Account:
    """Means over the runs of an arm that have rows, all from these rows, so that nothing is lost of a killed process.
    num_updates: made, per run · seconds: wall, by phase of the loop · cpu_seconds: in all phases · tokens: by kind."""

    arm: str
    num_runs: int
    num_updates: float
    seconds: Mapping[str, float]
    cpu_seconds: float | None
    tokens: Mapping[str, float]

    @property
    def tokens_per_cpu_second(self) -> float | None:
        """Sampled tokens per CPU second of the whole loop."""
        sampled = self.tokens.get("response")
        return sampled / self.cpu_seconds if sampled and self.cpu_seconds else None


def account(arm: Arm) -> Account | None:
    """None where no run of the arm has a row."""
    runs = [run for run in arm.runs if run.curves]
    if not runs:
        return None
    return Account(
        arm=arm.name,
        num_runs=len(runs),
        num_updates=fmean(_num_updates(run) for run in runs),
        seconds=_totals(runs, "time/", lambda name: not name.endswith("_cpu")),
        cpu_seconds=sum(_totals(runs, "time/", lambda name: name.endswith("_cpu")).values()) or None,
        tokens=_totals(runs, "tokens/", lambda name: True),
    )


def phases(accounts: Sequence[Account]) -> list[str]:
    """All phases that were timed, those of the loop first and in its order."""
    timed = dict.fromkeys(name for one in accounts for name in one.seconds)
    return [name for name in PHASES if name in timed] + [name for name in timed if name not in PHASES]


def _totals(runs: Sequence[Run], family: str, belongs: Callable[[str], bool]) -> dict[str, float]:
    names = dict.fromkeys(name for run in runs for name in run.curves if name.startswith(family))
    kept = filter(belongs, names)
    return {
        name.removeprefix(family): fmean(
            float(run.curves[name].values.sum()) if name in run.curves else 0.0 for run in runs
        )
        for name in kept
    }


def _num_updates(run: Run) -> int:
    """Rows with an update: all but the last one of a run that came to its end."""
    norms = run.curves.get("optim/grad_norm")
    return len(norms) if norms is not None else 0
