"""`minirl doctor --switches SWEEP`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from minirl.compose import compose
from minirl.sweep import file as sweep_file
from minirl.sweep.expand import Request, expand
from minirl.sweep.plan import PlannedArm, plan_arms
from minirl.sweep.request import scale
from minirl.switches.measure import observe
from minirl.switches.pairs import pairs
from minirl.switches.wording import difference

USUAL = "toy"  # the scale where none is named, as in conf/config.yaml
SAME = "these two arms are the same experiment"


def planned(name: str, overrides: Sequence[str], config_dirs: Sequence[Path]) -> list[PlannedArm]:
    """The arms of the sweep, composed and checked, with the command's own overrides."""
    file = sweep_file.read(sweep_file.find(name))
    request = Request(tuple(overrides), {}, None, None)
    design = expand(file, scale(file.base, overrides, USUAL), request)
    return plan_arms(design, lambda words: compose(list(words), config_dirs))


def show_switches(name: str, overrides: Sequence[str], config_dirs: Sequence[Path]) -> bool:
    """Prints what each choice changes in one batch; whether every choice changes something."""
    console = Console()
    arms = [arm for arm in planned(name, overrides, config_dirs) if arm.excluded is None]
    found = pairs(arms)
    compared = {name for pair in found if not pair.same for name in (pair.first, pair.second)}
    seen = observe([arm for arm in arms if arm.arm.name in compared], lambda line: console.print(line, style="dim"))
    live = True
    for pair in found:
        console.print(f"\n{pair.first}  ~  {pair.second}", style="bold", markup=False, highlight=False)
        console.print(f"  differ in {', '.join(pair.differing) or 'nothing'}", markup=False, highlight=False)
        lines = [SAME] if pair.same else difference(pair, seen[pair.first], seen[pair.second])
        live &= bool(lines)
        for line in lines or ["nothing changes in this batch: the switch is without effect here"]:
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    return live
