"""Inline SVG of a claim about counts: one mark per seed, filled where it has collapsed.

An interval of the difference of two shares may exclude zero where the exact test of the counts decides nothing; the
counts themselves promise no more than they say.
"""

from __future__ import annotations

from minirl.report.figures import BySeed
from minirl.report.findings import Finding
from minirl.report.grammar import COUNTS
from minirl.report.markup import Markup, element

STEP, ROW, RADIUS = 16.0, 32.0, 5.0
WIDTH = 220.0
LONGEST = 34  # letters of a name


def count_plot(finding: Finding) -> Markup | None:
    """A row per arm; None for a claim that is not about counts."""
    if finding.claim.relation not in COUNTS or not finding.values:
        return None
    rows = [_row(name, seeds, ROW * place) for place, (name, seeds) in enumerate(finding.values.items())]
    said = "; ".join(f"{name}: {sum(seeds.values()):.0f} of {len(seeds)}" for name, seeds in finding.values.items())
    return element(
        "svg",
        element("title", f"collapsed seeds, filled: {said}"),
        rows,
        viewBox=f"0 0 {WIDTH:.0f} {ROW * len(rows):.0f}",
        role="img",
        class_="forest counts",
    )


def _row(name: str, seeds: BySeed, top: float) -> Markup:
    step = min(STEP, (WIDTH - 2 * RADIUS) / max(len(seeds), 1))
    marks = [
        element("circle", class_="fallen" if fell else "standing", cx=RADIUS + 1 + step * place, cy=top + 22, r=RADIUS)
        for place, fell in enumerate(sorted(seeds.values(), reverse=True))
    ]
    text = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
    return element("g", element("text", text, x=0.0, y=top + 11), marks)
