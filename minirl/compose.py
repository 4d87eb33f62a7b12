"""From overrides to a configuration: where conf/ lies, how Hydra composes it, and errors a person can act on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from minirl import suggest
from minirl.config import Config, ConfigError

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra

CONFIG_NAME = "config"
VERSION_BASE = "1.3"  # of Hydra's behaviour
PACKAGE_LINE = "# @package"


def conf_dir() -> Path:
    """The groups of a configuration: inside the installed wheel, else in the checkout."""
    return _shipped("conf")


def sweeps_dir() -> Path:
    """The sweep files that come with minirl."""
    return _shipped("sweeps")


def _shipped(name: str) -> Path:
    packed = Path(str(resources.files("minirl"))) / "_data" / name
    return packed if packed.is_dir() else Path(__file__).resolve().parents[1] / name


def register_schema() -> None:
    """Makes the typed schema known to Hydra under the name that conf/config.yaml begins with."""
    store = ConfigStore.instance()
    if "minirl_schema.yaml" not in store.repo:
        store.store(name="minirl_schema", node=Config, provider="minirl")
    Plugins.instance()  # has other distributions register what they have, launchers of the same names as ours too:
    for path in (conf_dir() / "hydra" / "launcher").glob("*.yaml"):
        store.repo["hydra"]["launcher"].pop(path.name, None)  # Hydra would take it for the schema of our file


def search_path(config_dirs: Sequence[Path]) -> list[str]:
    """The override that adds a person's own folders of groups; they are looked at after ours."""
    for folder in config_dirs:
        if not folder.is_dir():
            raise ConfigError(f"--config-dir {folder}: no such folder")
    places = ",".join(_quoted(f"file://{folder.resolve()}") for folder in config_dirs)
    return [f"hydra.searchpath=[{places}]"] if config_dirs else []


def _quoted(text: str) -> str:
    """In single quotes. Hydra reads a backslash as itself, except in front of a quote."""
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
    trailing = len(text) - len(text.rstrip("\\"))
    return "'" + escaped + "\\" * trailing + "'"


def override(key: str, value: str) -> str:
    """key=value in Hydra's grammar, whatever characters the value holds."""
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", value) and value.lower() not in ("null", "true", "false", "nan")
    return f"{key}={value if plain else _quoted(value)}"


@contextmanager
def hydra_session() -> Iterator[Hydra]:
    """Hydra over our conf/, in this process; an outer Hydra is put back afterwards."""
    register_schema()
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(conf_dir()), job_name="minirl", version_base=VERSION_BASE):
            hydra = GlobalHydra.instance().hydra
            assert hydra is not None  # initialize_config_dir has just made it
            yield hydra
    finally:
        GlobalHydra.instance().hydra = outer


def compose(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> DictConfig:
    """The composed configuration of a run. Raises ConfigError."""
    with hydra_session(), explained(config_dirs):
        return hydra_compose(CONFIG_NAME, [*search_path(config_dirs), *overrides])


def load(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> Config:
    """The same, typed."""
    return typed(compose(overrides, config_dirs))


def typed(cfg: DictConfig) -> Config:
    """The configuration as schema objects. Raises ConfigError where a key is missing, unknown or refers to nothing."""
    with explained(()):
        refuse_unknown(cfg)
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), cfg))
    assert isinstance(config, Config)
    return config


def refuse_unknown(cfg: DictConfig) -> None:
    """A key that nothing reads (added by `+key=...`) would be a switch that does nothing."""
    known = suggest.schema_keys()
    for name in _leaves(cfg, ""):
        if not any(name == key or name.startswith(f"{key}.") for key in known):
            raise ConfigError(f"{name}: no such key{suggest.for_key(name, groups())}")


def _leaves(cfg: DictConfig, prefix: str) -> Iterator[str]:
    for name in map(str, cfg):
        node = cfg._get_node(name)
        if isinstance(node, DictConfig) and not node._is_none() and len(node) > 0:
            yield from _leaves(node, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def read(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration that a run wrote beside its results, with single keys (key=value) changed. Reading what was
    written gives what was run, whatever has become of conf/ since."""
    try:
        cfg = OmegaConf.load(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; a run writes its config.yaml there") from None
    with explained(()):
        changed = OmegaConf.merge(cfg, OmegaConf.from_dotlist(list(overrides)))
    assert isinstance(changed, DictConfig)
    return typed(changed)


def groups() -> list[str]:
    """The config groups: algo, engine, experiment, ... What is Hydra's own is set up for it, not chosen from here."""
    return sorted(folder.name for folder in conf_dir().iterdir() if folder.is_dir() and folder.name != "hydra")


def choices(group: str, config_dirs: Sequence[Path] = ()) -> dict[str, Path]:
    """The choices of a group, by name. Ours win over a person's own of the same name, as in Hydra's search."""
    found: dict[str, Path] = {}
    for folder in (conf_dir(), *config_dirs):
        for path in sorted((folder / group).glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


def listed(group: str, folders: Sequence[Path]) -> list[str]:
    """A line for each choice of a group: its name and what its file says of it."""
    if group not in groups():
        raise ConfigError(f"--group {group}: no such group{suggest.did_you_mean(group, groups())}")
    found = choices(group, folders)
    return [f"{name:<{max(map(len, found)) + 2}}{first_comment(path)}" for name, path in found.items()]


def first_comment(path: Path) -> str:
    """What a file of conf/ says of itself in its first line of comment."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and not line.startswith(PACKAGE_LINE):
            return line.lstrip("# ")
    return ""


@contextmanager
def explained(config_dirs: Sequence[Path]) -> Iterator[None]:
    """Turns Hydra's and OmegaConf's errors into one line that names the key, the value and what would be right."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(explanation(error, config_dirs)) from error


def explanation(error: Exception, config_dirs: Sequence[Path]) -> str:
    """The one line for an error of composition."""
    if isinstance(error, OverrideParseException):
        return f"{error.override} is not an override: expected key=value, group=choice, +new=value or ~key"
    text = f"{error}\n{error.__cause__ or ''}"
    for pattern, say in EXPLANATIONS:
        found = re.search(pattern, text)
        if found:
            return say(found, config_dirs)
    lines = [line for line in str(error).splitlines() if line.strip() and "for details" not in line]
    reason = str(error.__cause__ or "").splitlines()[:1]
    return ": ".join([*(line.strip().rstrip(".") for line in lines[:2]), *reason])


def _unknown_choice(found: re.Match[str], config_dirs: Sequence[Path]) -> str:
    group, _, name = found[1].rpartition("/")
    return f"{group}={name}: no such {group}{suggest.did_you_mean(name, choices(group, config_dirs))}"


def _unknown_key(found: re.Match[str], config_dirs: Sequence[Path]) -> str:
    return f"{found[1]}: no such key{suggest.for_key(found[1], groups())}"


def _wrong_value(found: re.Match[str], config_dirs: Sequence[Path]) -> str:
    value = found[1].partition("=")[2]
    reason = found[2].rstrip(".")
    options = re.search(r"expected one of \[(.*)\]", reason)
    near = suggest.question(suggest.nearest(value, options[1].split(", "))) if options else ""
    return f"{found[1]}: {reason}{near}"


def _not_a_value(found: re.Match[str], config_dirs: Sequence[Path]) -> str:
    key = found[1]
    parts = [name for name in suggest.schema_keys() if name.rpartition(".")[0] == key]
    return f"{key}={found[2]}: {key} has no value of its own; set one of {', '.join(parts)}"


def _swept(found: re.Match[str], config_dirs: Sequence[Path]) -> str:
    return f"{found[1]} asks for several runs: use `minirl sweep` or `python -m minirl.run -m {found[1]}`"


def _free_key(found: re.Match[str], config_dirs: Sequence[Path]) -> str:
    return f"{found[1]} is not set so far: to add it, write {found[2]}"


def _no_value(found: re.Match[str], config_dirs: Sequence[Path]) -> str:
    return f"{found[1]}: no value; every key of the schema needs one (null where it may)"


def _no_choice(found: re.Match[str], config_dirs: Sequence[Path]) -> str:
    return "a config group needs the name of a choice, not null (`minirl show --group GROUP` lists them)"


def _in_file(found: re.Match[str], config_dirs: Sequence[Path]) -> str:
    return f"{found[1]}.yaml: {found[2].rstrip('.')}"


Say = Callable[[re.Match[str], Sequence[Path]], str]
EXPLANATIONS: list[tuple[str, Say]] = [
    (r"Could not find '([^']+)'", _unknown_choice),
    (r"Ambiguous value for argument '(.+?)'\n", _swept),
    (r"Sweep parameters '(.+?)' requires", _swept),
    (r"Could not override '([^']+)'.\nTo append to your config use (.+)\n(?s:.*)reference_type=Dict", _free_key),
    (r"Could not override '([^']+)'", _unknown_key),
    (r"Error merging override (\S+?)=(.*)\nInvalid type assigned: \w+ is not a subclass", _not_a_value),
    (r"Error merging override (\S.*)\n(.+)", _wrong_value),
    (r"In '([^']+)': \w+ raised while composing config:\n(.+)", _in_file),
    (r"missing mandatory value: (\S+)", _no_value),
    (r"Config group override must be", _no_choice),
]
