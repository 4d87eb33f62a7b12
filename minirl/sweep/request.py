"""What a command asks of a sweep: its overrides, told apart into fixed ones, axes and seeds by Hydra's own grammar."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from minirl.config import ConfigError
from minirl.sweep.expand import SEED, Request

EXPERIMENT = "experiment"


def parse(arguments: Sequence[str], loader: ConfigLoader) -> Request:
    """`algo=minirl,grpo group_size=16 seed=0,1` as fixed=(group_size=16), axes={algo: ...}, seeds=(0, 1)."""
    fixed, axes, seeds, group = [], {}, None, None
    for override in OverridesParser.create(config_loader=loader).parse_overrides(list(arguments)):
        key, line = override.get_key_element(), override.input_line or ""
        if key == SEED:
            seeds = _seeds(override)
        elif key == "run.name":
            raise ConfigError(f"{line}: in a sweep run.name is the name of the arm")
        elif not override.is_sweep_override():
            group = str(override.value()) if key == "run.group" else group
            fixed += [line] if key != "run.group" else []
        elif key in (EXPERIMENT, "run.group"):
            raise ConfigError(f"{line}: a sweep has one {key}; repeat the command for another")
        elif not override.is_discrete_sweep():
            raise ConfigError(f"{line}: an interval has no list of values; write the values, {key}=A,B,C")
        else:
            axes[key] = tuple(f"{key}={value}" for value in override.sweep_string_iterator())
    return Request(tuple(fixed), axes, seeds, group)


def _seeds(override: Override) -> tuple[int, ...]:
    try:
        texts = override.sweep_string_iterator() if override.is_sweep_override() else [override.value()]
        seeds = tuple(int(str(text)) for text in texts)
    except ValueError:
        raise ConfigError(f"{override.input_line}: expected whole numbers, such as seed=0,1,2") from None
    return tuple(dict.fromkeys(seeds))


def scale(base: Sequence[str], fixed: Sequence[str], usual: str) -> str:
    """The scale at which the sweep is run: the last `experiment=` of the file's base and of the command."""
    chosen = [line.partition("=")[2] for line in (*base, *fixed) if line.partition("=")[0] == EXPERIMENT]
    return chosen[-1] if chosen else usual
