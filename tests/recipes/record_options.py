"""Writes tests/recipes/options/: the option names of the stacks that are installed (`make test-recipes` installs them).

prime-rl is on no index: its names are copied by hand from the file that `minirl/recipes/prime_rl.py` gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

OPTIONS = Path(__file__).parent / "options"
OF_VERL = ("algorithm.", "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "data.", "trainer.")


def verl_defaults(name: str) -> Any:
    """The composed configuration of one of verl's trainers; verl itself is not imported."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    spec = find_spec("verl")
    assert spec is not None
    assert spec.origin is not None
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(Path(spec.origin).parent / "trainer" / "config"), version_base="1.3"):
        return compose(name)


def of_verl() -> set[str]:
    from omegaconf import OmegaConf

    names: set[str] = set()
    for trainer in ("ppo_trainer", "ppo_megatron_trainer"):
        names |= set(leaves(OmegaConf.to_container(verl_defaults(trainer), resolve=False)))
    return {name for name in names if name.startswith(OF_VERL) and "_target_" not in name}


def leaves(tree: Any, prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def of_dataclass(made: Any, prefix: str = "") -> Iterator[str]:
    for spec in fields(made):
        value = getattr(made, spec.name)
        if is_dataclass(value):
            yield from of_dataclass(value, f"{prefix}{spec.name}.")
        else:
            yield f"{prefix}{spec.name}"


def of_skyrl() -> set[str]:
    """Of the two parts that recipes write to: the whole one imports an inference server."""
    from skyrl.train.config.config import GeneratorConfig, TrainerConfig

    return {*of_dataclass(TrainerConfig(), "trainer."), *of_dataclass(GeneratorConfig(), "generator.")}


def of_trl() -> set[str]:
    from trl import GRPOConfig

    return {spec.name for spec in fields(GRPOConfig)}


if __name__ == "__main__":
    OPTIONS.mkdir(exist_ok=True)
    for stack, found in {"verl": of_verl, "skyrl": of_skyrl, "trl": of_trl}.items():
        (OPTIONS / f"{stack}.txt").write_text("".join(f"{name}\n" for name in sorted(found())))
