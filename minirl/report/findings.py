"""What the runs say of a claim, and the verdict once all claims of a sweep are looked at together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from minirl.report.figures import BySeed
from minirl.report.grammar import Claim
from minirl.report.statistics import LEVEL, SEEDS_FOR_VERDICT, Evidence, holm, holm_level


class Verdict(StrEnum):
    reproduced = "reproduced"
    contradicted = "contradicted"
    undecided = "undecided"
    described = "described, not tested"  # one seed


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim and its evidence.

    values: the figure of each arm by seed (for claims of collapse 1.0 or 0.0) · quantity: what `effect` is, in words
    · effect, interval: the estimate and its 95 % interval (None below three seeds) · region: where the claim says that
    the effect lies · num_seeds: pairs, or seeds of the smaller arm · evidence: None where nothing can be tested
    · seeds_at: by level, how many seeds would probably decide · error: within-run standard error, for one seed only
    · remarks: what was left out and why · setting: scale and learning rate, at which alone a verdict holds.
    """

    claim: Claim
    values: Mapping[str, BySeed]
    quantity: str
    region: tuple[float, float]
    remarks: tuple[str, ...]
    num_seeds: int = 0
    effect: float | None = None
    interval: tuple[float, float] | None = None
    evidence: Evidence | None = None
    seeds_at: Callable[[float], int | None] | None = None
    error: float | None = None
    setting: str = ""

    @property
    def testable(self) -> bool:
        return self.evidence is not None and self.num_seeds >= SEEDS_FOR_VERDICT


@dataclass(frozen=True, slots=True)
class Judgement:
    """adjusted: the two-sided p-value after Holm, None where no verdict was possible · more_seeds: a hint for
    planning, None where there is none to give · num_claims: of the sweep, all of which Holm corrects for."""

    finding: Finding
    verdict: Verdict
    adjusted: float | None
    more_seeds: int | None
    num_claims: int

    @property
    def claim(self) -> Claim:
        return self.finding.claim


def judge(findings: Sequence[Finding]) -> list[Judgement]:
    """Holm over all claims; one that cannot be tested has p = 1 and still counts in their number."""
    p_values = [finding.evidence.p if finding.evidence and finding.testable else 1.0 for finding in findings]
    adjusted = holm(p_values)
    return [
        Judgement(
            finding,
            _verdict(finding, adjusted[index]),
            adjusted[index] if finding.testable else None,
            _more_seeds(finding, holm_level(p_values, index)) if adjusted[index] > LEVEL else None,
            len(findings),
        )
        for index, finding in enumerate(findings)
    ]


def _verdict(finding: Finding, adjusted: float) -> Verdict:
    if finding.num_seeds == 1 and finding.effect is not None:
        return Verdict.described
    if finding.evidence is None or not finding.testable or adjusted > LEVEL:
        return Verdict.undecided
    return Verdict.reproduced if finding.evidence.p_for < finding.evidence.p_against else Verdict.contradicted


def _more_seeds(finding: Finding, level: float) -> int | None:
    if finding.effect is not None and finding.seeds_at is None:
        return SEEDS_FOR_VERDICT - finding.num_seeds
    needed = finding.seeds_at(level) if finding.seeds_at else None
    return max(needed - finding.num_seeds, 1) if needed else None


def unjudged(finding: Finding) -> Finding:
    """The same figures without a test: for what is shown beside a claim and is none itself."""
    return replace(finding, evidence=None, seeds_at=None)
