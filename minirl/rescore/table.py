"""A rescored batch as values, as a table and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from minirl.rescore.exact import Exact
from minirl.rescore.gram import Figures, figures, inner_products
from minirl.rescore.probe import Probe

EXACT = "exact"


@dataclass(frozen=True)
class Rescored:
    """names: of the arms, the exact gradient last where there is one · probes: of the arms · figures: of all ·
    same: arm -> the earlier arm that is the same algorithm."""

    names: tuple[str, ...]
    probes: Mapping[str, Probe]
    figures: Figures
    exact: Exact | None
    same: Mapping[str, str]
    title: str


def rescored(
    probes: Mapping[str, Probe], exact: Exact | None, same: Mapping[str, str], *, title: str, seed: int
) -> Rescored:
    gradients = [probe.gradients for probe in probes.values()] + ([] if exact is None else [exact.gradients])
    names = (*probes, *([] if exact is None else [EXACT]))
    return Rescored(names, probes, figures(inner_products(gradients), seed=seed), exact, same, title)


def table(found: Rescored) -> RenderableType:
    shown = Table(title=escape(found.title), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    shown.add_column("arm", overflow="fold")
    against = [EXACT] if found.exact is not None else []
    for heading in ("norm", "noise", "cos own", *(f"cos {name}" for name in against), "kept", "weight"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for place, name in enumerate(found.names):
        figures_of = [_norm(found, place), number(found.figures.noise[place]), _cosine(found, place, 0)]
        figures_of += [_cosine(found, place, len(found.names) - 1)] * len(against)
        shown.add_row(escape(name), *figures_of, *_masks(found.probes.get(name)))
    return shown


def _masks(probe: Probe | None) -> list[str]:
    if probe is None:
        return ["", ""]
    kept = float((probe.kept * probe.accepted).float().mean())
    return [f"{kept:.1%}", number(float(probe.is_weight.mean()))]


def _norm(found: Rescored, place: int) -> str:
    return f"{number(found.figures.norm[place])}±{number(found.figures.norm_error[place])}"


def _cosine(found: Rescored, place: int, other: int) -> str:
    value, error = found.figures.cosine[place, other], found.figures.cosine_error[place, other]
    return "–" if math.isnan(value) else f"{value:.3f}±{error:.3f}"


def number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}"


def notes(found: Rescored) -> list[str]:
    """What the table does not say by itself."""
    lines = ["±: one standard deviation over resampled prompts; noise: of the gradient, relative to its norm"]
    lines += [f"{name}: the same algorithm as {other}" for name, other in found.same.items()]
    lines += [
        f"{name}: no gradient at all on this batch"
        for name, norm in zip(found.names, found.figures.norm, strict=True)
        if norm == 0
    ]
    if found.exact is not None:
        exact = found.exact
        lines.append(
            f"exact: {exact.num_responses} responses enumerated, at least {exact.mass:.2%} of the probability for "
            "every prompt; its ± is over prompts"
        )
    return lines


def as_json(found: Rescored) -> dict[str, Any]:
    """All figures; a cosine that does not exist is null."""
    result = found.figures
    return {
        "title": found.title,
        "arms": {
            name: {
                "norm": _plain(result.norm[place]),
                "norm_error": _plain(result.norm_error[place]),
                "noise": _plain(result.noise[place]),
                "cosine": dict(zip(found.names, map(_plain, result.cosine[place]), strict=True)),
                "cosine_error": dict(zip(found.names, map(_plain, result.cosine_error[place]), strict=True)),
                **_described(found.probes.get(name)),
            }
            for place, name in enumerate(found.names)
        },
        "same": dict(found.same),
        "exact": None
        if found.exact is None
        else {"mass": found.exact.mass, "num_responses": found.exact.num_responses},
    }


def _described(probe: Probe | None) -> dict[str, Any]:
    if probe is None:
        return {}
    kept = float((probe.kept * probe.accepted).float().mean())
    return {"loss": probe.loss, "kept": kept, "mean_weight": float(probe.is_weight.mean())}


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
