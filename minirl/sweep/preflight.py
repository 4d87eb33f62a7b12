"""What can be known of a sweep's claims before anything runs: whether what they ask for is measured at all, whether
their seeds can decide them, and what the command has taken from the arms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from minirl.config import ConfigError
from minirl.report.grammar import COUNTS, Claim, parse_claim, quoted
from minirl.report.statistics import LEVEL, SEEDS_FOR_VERDICT, rate_above, rate_above_reference
from minirl.report.wording import plural
from minirl.suggest import did_you_mean
from minirl.sweep.expand import Design

USUAL = ("eval/avg", "reward/mean")  # no need to load what logs them


def claims_of(design: Design) -> list[Claim]:
    """The claims of the design. Raises ConfigError for one that is badly written or asks for what nobody measures."""
    claims = [parse_claim(entry, [arm.name for arm in design.arms]) for entry in design.claims]
    for claim in claims:
        if claim.metric is not None and claim.metric not in USUAL:
            _check_metric(claim)
    return claims


def _check_metric(claim: Claim) -> None:
    from minirl.metrics.names import is_name_of, logged_names

    names = logged_names()
    if not any(is_name_of(str(claim.metric), name) for name in names):
        raise ConfigError(
            f"claim {claim.text!r}: no metric is called {claim.metric!r}{did_you_mean(str(claim.metric), names)} "
            "(docs/metrics.md has all)"
        )


def check_updates(claims: Sequence[Claim], horizons: Mapping[str, int]) -> None:
    """Raises ConfigError for a claim about an update that is not planned. horizons: arm -> num_updates."""
    for claim in claims:
        _check_update(claim, horizons)


def _check_update(claim: Claim, horizons: Mapping[str, int]) -> None:
    word, _, number = (claim.at or "").partition(" ")
    short = [arm for arm in claim.arms if word == "update" and horizons.get(arm, int(number)) < int(number)]
    if short:
        raise ConfigError(
            f"claim {claim.text!r}: at: {claim.at!r} is after the last update of {quoted(short[0])}, "
            f"num_updates={horizons[short[0]]}"
        )


def undecidable(design: Design, gone: Mapping[str, str]) -> list[str]:
    """A line for every claim that cannot be decided, whatever the runs show. gone: arms without runs of their own ->
    why (excluded, or the arm that is the same experiment)."""
    claims, num_seeds = claims_of(design), len(design.seeds)
    lines = [
        f"note: claim {claim.text!r} has no verdict here: {why}" for claim in claims if (why := _lost(claim, gone))
    ]
    if claims and num_seeds < SEEDS_FOR_VERDICT:
        return [*lines, f"note: {num_seeds} {plural(num_seeds, 'seed')}: a verdict takes {SEEDS_FOR_VERDICT}"]
    counts = [claim for claim in claims if claim.relation in COUNTS and not _lost(claim, gone)]
    return lines + [line for claim in counts if (line := _undecidable(claim, num_seeds, len(claims)))]


def _lost(claim: Claim, gone: Mapping[str, str]) -> str | None:
    """Why the arms of the claim cannot be compared: one is excluded, or two are the same."""
    return next((f"{quoted(arm)} is {gone[arm]}" for arm in claim.arms if arm in gone), None)


def _undecidable(claim: Claim, num_seeds: int, num_claims: int) -> str | None:
    """By Holm the clearest of m claims needs p <= LEVEL / m, the next LEVEL / (m - 1), and so on."""
    best = _clearest(claim, num_seeds)
    clearer = next((first for first in range(num_claims) if best * (num_claims - first) <= LEVEL), None)
    if clearer == 0:
        return None
    unless = (
        "whatever the others are" if clearer is None else f"unless {clearer} of the {num_claims} claims are clearer"
    )
    return f"note: {num_seeds} seeds that all agree give {claim.text!r} p = {best:.2g}: no verdict, {unless}"


def _clearest(claim: Claim, num_seeds: int) -> float:
    """p of a count claim if all seeds show what it says."""
    if len(claim.arms) == 2:
        return rate_above_reference(num_seeds, num_seeds, 0, num_seeds).p
    rate = claim.margin or 0.0
    return rate_above(num_seeds, num_seeds, rate if claim.relation == COUNTS[0] else 1 - rate).p


def replaced(design: Design) -> list[str]:
    """A line for every override of the command that takes away what the file's arms say of the same key."""
    return [line for override in design.fixed if (line := _replaced(override, design))]


def _replaced(override: str, design: Design) -> str | None:
    key = override.partition("=")[0]
    own: dict[str, list[str]] = {}
    for arm in design.arms:
        last = [line for line in arm.overrides if line.partition("=")[0] == key][-1:]
        if last and last[0] != override:
            own.setdefault(last[0], []).append(quoted(arm.name))
    if not own:
        return None
    lost = "; ".join(f"{line} of {_some(arms)}" for line, arms in own.items())
    return f"warning: {override} of the command replaces {lost}: what these arms are named for is gone"


def _some(arms: Iterable[str]) -> str:
    names = list(arms)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
