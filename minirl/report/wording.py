"""Verdicts in plain words. No more is said than was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import floor, log10

from minirl.report.findings import Finding, Judgement, Verdict
from minirl.report.grammar import COUNTS, Claim, Relation, quoted
from minirl.report.read import Sweep
from minirl.report.statistics import LEVEL, MOST_SEEDS, SEEDS_FOR_INTERVAL, SEEDS_FOR_VERDICT

MOST_DECIMALS = 7


def headline(judgements: Sequence[Judgement]) -> str:
    """How many claims have which verdict."""
    if not judgements:
        return "This sweep makes no claims: here is what was measured."
    counts = Counter(judgement.verdict for judgement in judgements)
    parts = [f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict]]
    return f"Of {counted(len(judgements), 'claim')}: {', '.join(parts)}."


def effect(finding: Finding) -> str:
    """The number with its interval and what it is of."""
    if finding.effect is None:
        return "no figure"
    if finding.claim.relation in COUNTS:
        parts = [f"{sum(seeds.values()):.0f} of {len(seeds)} in {quoted(arm)}" for arm, seeds in finding.values.items()]
        return f"collapsed: {'; '.join(parts)}"
    sign = "+" if finding.claim.relation in (Relation.greater, Relation.less, Relation.within) else ""
    texts = rounded([finding.effect, *(finding.interval or ())], sign)
    value = f"{finding.quantity} = {texts[0]}"
    if finding.interval is not None:
        return f"{value} [{texts[1]}, {texts[2]}]"
    return f"{value} (± {finding.error:.2g} from problems and samples)" if finding.error is not None else value


def rounded(values: Sequence[float], sign: str = "") -> list[str]:
    """All with the decimals that show their spread to two digits; a lone value to three digits."""
    spread = (max(values) - min(values)) / 2
    decimals = 1 - floor(log10(spread)) if spread > 0 else 2 - floor(log10(abs(values[0]))) if values[0] else 0
    style = f"{sign}.{max(decimals, 0)}f" if decimals <= MOST_DECIMALS else f"{sign}.3g"
    return [f"{value:{style}}".replace("-", "−") for value in values]


def reason(judgement: Judgement) -> str:
    """Why this verdict, and what would change an undecided one."""
    finding, claim = judgement.finding, judgement.claim
    if finding.effect is None:
        return "Nothing to compare."
    if judgement.verdict == Verdict.described:
        return "One seed: described, not tested. Another seed may say the opposite."
    if judgement.verdict == Verdict.reproduced:
        return f"As claimed, beyond seed noise ({_basis(finding)})."
    if judgement.verdict == Verdict.contradicted:
        return f"Not as claimed, beyond seed noise: {_outside(claim)} ({_basis(finding)})."
    if finding.num_seeds < SEEDS_FOR_INTERVAL:
        return f"{_seeds(finding)}: points only; an interval takes {SEEDS_FOR_INTERVAL}, a verdict {SEEDS_FOR_VERDICT}."
    if finding.num_seeds < SEEDS_FOR_VERDICT:
        return f"{_seeds(finding)} give an interval; a verdict takes {SEEDS_FOR_VERDICT}.{_outlook(judgement)}"
    p = finding.evidence.p if finding.evidence else 1.0
    if p <= LEVEL:
        return (
            f"Clear by itself (p = {p:.2g}), not among {judgement.num_claims} claims (Holm: {judgement.adjusted:.2g}; "
            f"{_seeds(finding)}).{_outlook(judgement)}"
        )
    return f"It did not show beyond seed noise, nor did the opposite ({_basis(finding)}).{_outlook(judgement)}"


def test_name(claim: Claim) -> str:
    """The test behind the verdict."""
    if claim.relation in COUNTS:
        return "exact test of two counts" if len(claim.arms) == 2 else "exact binomial test"
    return {
        Relation.within: "two one-sided t tests",
        Relation.ratio: "t test on the log ratio",
        Relation.converges: "t tests on the spread",
    }.get(claim.relation, "t test")


def statement(claim: Claim) -> str:
    """The claim as the test reads it: metric, at, relation, margin."""
    arms = [quoted(arm) for arm in claim.arms]
    if claim.relation in COUNTS:
        word = "more" if claim.relation == Relation.collapsed else "fewer"
        against = f"than of {arms[1]}" if len(arms) == 2 else f"than {claim.margin:.0%}"
        return f"{word} seeds of {arms[0]} collapse {against}"
    what = f"{claim.metric} at {claim.at}" if claim.at in ("end", "peak") else f"{claim.metric}, {claim.at}"
    margin = claim.margin or 0.0
    chain = {Relation.greater: " > ", Relation.less: " < "}.get(claim.relation)
    if chain is not None:
        return f"{what}: {chain.join(arms)}{f', by more than {margin:g}' if margin else ''}"
    return {
        Relation.within: f"{what}: {arms[0]} and {arms[-1]} differ by less than {margin:g}",
        Relation.ratio: f"{what}: {arms[0]} / {arms[-1]} {'>' if margin >= 1 else '<'} {margin:g}",
        Relation.converges: f"{what}: {', '.join(arms)} come together to within {margin:g}",
    }[claim.relation]


def plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"


def counted(count: int, word: str) -> str:
    """1 seed, 2 seeds."""
    return f"{count} {plural(count, word)}"


def results(sweep: Sweep) -> str:
    """How many runs have a result."""
    have = sum(run.has_result for run in sweep.runs)
    return f"{have} of {counted(len(sweep.runs), 'run')} {'has' if len(sweep.runs) == 1 else 'have'} a result."


def _seeds(finding: Finding) -> str:
    paired = len(set.intersection(*(set(seeds) for seeds in finding.values.values()))) if finding.values else 0
    several = len(finding.values) > 1 and finding.claim.relation not in COUNTS
    kind = ("paired " if paired else "unpaired ") if several else ""
    return f"{finding.num_seeds} {kind}{plural(finding.num_seeds, 'seed')}"


def _basis(finding: Finding) -> str:
    """What a verdict rests on, and so where it holds."""
    return "; ".join(filter(None, (_seeds(finding), finding.setting)))


def _outside(claim: Claim) -> str:
    """Where the effect lies if the claim is contradicted."""
    margin = claim.margin or 0.0
    return {
        Relation.greater: f"below {margin:g}" if margin else "the other way round",
        Relation.less: f"above −{margin:g}"
        if margin > 0
        else f"above {-margin:g}"
        if margin
        else "the other way round",
        Relation.within: f"the difference is larger than {margin:g}",
        Relation.ratio: f"the ratio is {'below' if margin >= 1 else 'above'} {margin:g}",
        Relation.converges: "the spread stays above the margin, or grows",
        Relation.collapsed: "it collapses more rarely",
        Relation.not_collapsed: "it collapses more often",
    }[claim.relation]


def _outlook(judgement: Judgement) -> str:
    more = judgement.more_seeds
    if more is None:
        return f" More than {MOST_SEEDS} seeds would be needed to tell."
    return f" About {more} more {plural(more, 'seed')} would probably decide."
