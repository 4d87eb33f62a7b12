"""The reference page names every figure that is logged, and stands in docs/ as the code would write it today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from random_batches import loss_terms, random_batch, random_logprobs

from minirl.metrics.live import live_metrics
from minirl.metrics.reference import declared, entries, page
from minirl.metrics.rollout import rollout_metrics
from minirl.metrics.statistics import Mean
from minirl.metrics.update import update_metrics
from minirl.types import figures

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m minirl.metrics.reference > docs/metrics.md"


def test_every_figure_has_its_line_and_every_line_of_these_families_its_figure() -> None:
    batch = random_batch(0, 12)
    logprobs = random_logprobs(batch, 0)
    logged = figures(
        rollout_metrics(batch, extreme_ratio=2.0)
        | live_metrics(batch, batch.old, extreme_ratio=2.0)
        | update_metrics(batch, logprobs, loss_terms(batch, logprobs), first=True)
    )
    patterns = {
        name: re.compile(
            re.escape(name)
            .replace("<quantile>", r"\d+")
            .replace("<layer>", r"\d+")
            .replace("<position>", r"(prompt|\d+)")
        )
        for entry in entries()
        if entry.module.__name__.startswith("minirl.metrics.")
        for name in entry.names
    }
    for name in logged:
        assert sum(pattern.fullmatch(name) is not None for pattern in patterns.values()) == 1, name
    for name, pattern in patterns.items():
        assert any(pattern.fullmatch(found) for found in logged), name


def test_names_are_documented_once() -> None:
    names = [name for entry in entries() for name in entry.names]
    assert len(names) == len(set(names)) > 80
    assert all(f"`{name}`" in page() for name in names)


def test_an_estimator_without_a_source_is_refused() -> None:
    def nameless(seen: object) -> Mean:
        """m(x_t)."""
        return Mean(0.0, 0)

    with pytest.raises(ValueError, match=r"nameless: its docstring must be a formula and \[a source\]"):
        declared(nameless)
