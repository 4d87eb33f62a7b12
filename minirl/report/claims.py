"""Every claim of a sweep against its runs: from figures by seed to an effect, its interval and the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, inf, log
from statistics import fmean

from minirl.config import Routing
from minirl.report import statistics
from minirl.report.figures import BySeed, collapsed, compared, figures, left_out, starts, within_run_error
from minirl.report.findings import Finding, Judgement, judge, unjudged
from minirl.report.grammar import COUNTS, Claim, Relation, parse_claim, quoted
from minirl.report.matched import budgets, figures_at
from minirl.report.read import Arm, Sweep
from minirl.report.statistics import LEVEL, SEEDS_FOR_INTERVAL, Evidence, Location


def evaluate(sweep: Sweep) -> list[Judgement]:
    """The verdict on every claim, in the order of the sweep file."""
    return judge([measure(parse_claim(entry, sweep.arms), sweep) for entry in sweep.claims])


def companion(claim: Claim, sweep: Sweep) -> Finding | None:
    """The same claim on live routing, where a replaying arm's mismatch is smaller by construction; never tested."""
    replays = any(sweep.arms[name].config.get("algo.routing") == Routing.r3 for name in claim.arms)
    if claim.metric is None or not claim.metric.startswith("mismatch/") or not replays:
        return None
    return unjudged(measure(replace(claim, metric=claim.metric.replace("mismatch/", "mismatch_live/")), sweep))


def at_matched_tokens(claim: Claim, sweep: Sweep) -> tuple[Finding, float] | None:
    """The same claim after equal response tokens instead of equal updates, and these tokens (mean over seeds); never
    tested. None where the arms have sampled equally many, and for claims of collapse, which are about whole runs."""
    arms = [sweep.arms[name] for name in claim.arms]
    if claim.metric is None or claim.at is None or not all(arm.results for arm in arms):
        return None
    tokens = budgets(arms, claim.at)
    if not tokens:
        return None
    values = {arm.name: figures_at(arm, claim.metric, claim.at, tokens) for arm in arms}
    return unjudged(_measured(claim, arms, values)), fmean(tokens.values())


def measure(claim: Claim, sweep: Sweep) -> Finding:
    """The figures of the claim's arms and the evidence in them, before the other claims are looked at."""
    arms = [sweep.arms[name] for name in claim.arms]
    return replace(_measured(claim, arms, _values(claim, arms)), setting=setting(sweep.scale, arms))


def setting(scale: str | None, arms: Sequence[Arm]) -> str:
    """Where a verdict on these arms holds: at this scale and with this learning rate (or these), for all one knows."""
    rates = dict.fromkeys(arm.config["train.optim.lr"] for arm in arms if "train.optim.lr" in arm.config)
    parts = [f"{scale} scale"] if scale else []
    parts += [f"learning rate {' and '.join(f'{rate:g}' for rate in rates)}"] if rates else []
    return ", ".join(parts)


def _measured(claim: Claim, arms: Sequence[Arm], values: Mapping[str, BySeed]) -> Finding:
    remarks = [remark for arm in arms for remark in left_out(arm)]
    if claim.metric is not None:
        remarks += [
            f"{arm.name}: no {claim.metric} at {claim.at}" for arm in arms if arm.results and not values[arm.name]
        ]
    if len({arm.same_as or arm.name for arm in arms}) < len(arms):
        remarks.append("two of these arms are one and the same run, shown twice: there is nothing to compare")
        return Finding(claim, values, _quantity(claim), _region(claim), tuple(remarks))
    finding = Finding(claim, values, _quantity(claim), _region(claim), tuple(remarks))
    return RELATIONS[claim.relation](finding, arms) if all(values.values()) else finding


def _values(claim: Claim, arms: Sequence[Arm]) -> dict[str, BySeed]:
    if claim.metric is None or claim.at is None:
        return {arm.name: {run.seed: float(collapsed(run)) for run in arm.results} for arm in arms}
    return {arm.name: figures(arm, claim.metric, claim.at) for arm in arms}


def _chain(finding: Finding, arms: Sequence[Arm]) -> Finding:
    """greater, less: every neighbour in the chain; the effect that is shown is the weakest link's."""
    margin, sign = finding.claim.margin or 0.0, -1.0 if finding.claim.relation == Relation.less else 1.0
    sides = {name: {seed: sign * value for seed, value in seeds.items()} for name, seeds in finding.values.items()}
    links = list(zip(finding.claim.arms, finding.claim.arms[1:], strict=False))
    means = [compared(sides[left], sides[right]) for left, right in links]
    located = [mean for mean in means if isinstance(mean, Location)]
    if len(located) < len(means):
        return _described(finding, arms, sign * min(mean for mean in means if not isinstance(mean, Location)))
    parts = [statistics.above(mean, margin) for mean in located]
    weakest = max(range(len(parts)), key=lambda link: parts[link].p_for)
    low, high = located[weakest].interval(LEVEL)
    return _tested(
        replace(finding, quantity=" − ".join(map(quoted, links[weakest]))),
        sign * located[weakest].estimate,
        (low, high) if sign > 0 else (-high, -low),
        min(mean.num_seeds for mean in located),
        statistics.jointly(parts),
        [(abs(mean.estimate - margin), mean.deviation) for mean in located],
    )


def _within(finding: Finding, arms: Sequence[Arm]) -> Finding:
    margin = finding.claim.margin or 0.0
    mean = compared(*finding.values.values())
    if not isinstance(mean, Location):
        return _described(finding, arms, mean)
    distance = abs(abs(mean.estimate) - margin)
    evidence = statistics.within(mean, margin)
    return _tested(finding, mean.estimate, mean.interval(LEVEL), mean.num_seeds, evidence, [(distance, mean.deviation)])


def _ratio(finding: Finding, arms: Sequence[Arm]) -> Finding:
    """A t test on log(A / B), shown as the ratio again."""
    margin = finding.claim.margin or 1.0
    if min(value for seeds in finding.values.values() for value in seeds.values()) <= 0:
        return replace(finding, remarks=(*finding.remarks, "a ratio needs positive figures, and some are not"))
    logs = [{seed: log(value) for seed, value in seeds.items()} for seeds in finding.values.values()]
    mean = compared(*logs)
    if not isinstance(mean, Location):
        return _described(finding, arms, exp(mean))
    evidence = statistics.above(mean, log(margin))
    low, high = mean.interval(LEVEL)
    return _tested(
        finding,
        exp(mean.estimate),
        (exp(low), exp(high)),
        mean.num_seeds,
        evidence if margin >= 1 else evidence.opposite(),
        [(abs(mean.estimate - log(margin)), mean.deviation)],
    )


def _converges(finding: Finding, arms: Sequence[Arm]) -> Finding:
    """By seed: the spread over arms is below the margin, and smaller than at the first recorded version."""
    margin, metric = finding.claim.margin or 0.0, finding.claim.metric or ""
    first = {arm.name: starts(arm, metric) for arm in arms}
    shared = sorted(set.intersection(*(set(seeds) for seeds in finding.values.values())))
    if not shared:
        return replace(finding, remarks=(*finding.remarks, "the arms share no seed: there is no spread by seed"))
    ends = [_spread(finding.values, seed) for seed in shared]
    gains = [_spread(first, seed) - last for seed, last in zip(shared, ends, strict=True)]
    if len(shared) == 1:
        return _described(finding, arms, ends[0])
    final, gain = statistics.location(ends), statistics.location(gains)
    return _tested(
        finding,
        final.estimate,
        final.interval(LEVEL),
        len(shared),
        statistics.jointly([statistics.above(final, margin).opposite(), statistics.above(gain, 0.0)]),
        [(abs(margin - final.estimate), final.deviation), (abs(gain.estimate), gain.deviation)],
    )


def _spread(values: Mapping[str, BySeed], seed: int) -> float:
    """max - min over arms."""
    figures_of_seed = [seeds[seed] for seeds in values.values()]
    return max(figures_of_seed) - min(figures_of_seed)


def _count(finding: Finding, arms: Sequence[Arm]) -> Finding:
    """collapsed, not_collapsed: exact tests on the number of seeds that collapsed."""
    counts = [(int(sum(seeds.values())), len(seeds)) for seeds in finding.values.values()]
    fewer = finding.claim.relation == Relation.not_collapsed

    def evidence(*counts: tuple[int, int]) -> Evidence:
        (count, total), reference = counts[0], counts[1:]
        if reference:
            found = statistics.rate_above_reference(count, total, *reference[0])
        else:
            found = statistics.rate_above(count, total, finding.claim.margin or 0.0)
        return found.opposite() if fewer else found

    def scaled(num_seeds: int) -> Evidence:
        return evidence(*((round(count / total * num_seeds), num_seeds) for count, total in counts))

    bound = finding.claim.margin if finding.claim.margin is not None else counts[1][0] / counts[1][1]
    num_seeds = min(total for _, total in counts)
    enough = num_seeds >= SEEDS_FOR_INTERVAL
    return replace(
        finding,
        region=(0.0, bound) if fewer else (bound, 1.0),
        effect=counts[0][0] / counts[0][1],
        interval=statistics.rate_interval(*counts[0], LEVEL) if enough else None,
        num_seeds=num_seeds,
        evidence=evidence(*counts) if enough else None,
        seeds_at=(lambda level: statistics.seeds_needed_to_count(scaled, level)) if enough else None,
    )


def _tested(
    finding: Finding,
    effect: float,
    interval: tuple[float, float],
    num_seeds: int,
    evidence: Evidence,
    distances: Sequence[tuple[float, float]],
) -> Finding:
    """The finding with its evidence; below three seeds only the points. distances: (to its bound, deviation) of each
    part: if the claim looks true all must be cleared, otherwise any."""
    if num_seeds < SEEDS_FOR_INTERVAL:
        return replace(finding, effect=effect, num_seeds=num_seeds)

    def seeds_at(level: float) -> int | None:
        needed = [statistics.seeds_needed(*part, level) for part in distances]
        known = [number for number in needed if number is not None]
        if evidence.p_for <= evidence.p_against:
            return max(known) if len(known) == len(needed) else None
        return min(known, default=None)

    return replace(finding, effect=effect, interval=interval, num_seeds=num_seeds, evidence=evidence, seeds_at=seeds_at)


def _described(finding: Finding, arms: Sequence[Arm], effect: float) -> Finding:
    """One pair of runs: the number, and what problems and samples alone leave open of it (for eval/avg)."""
    error = None
    if finding.claim.metric == "eval/avg" and finding.claim.relation != Relation.ratio:
        runs = {arm.name: next(run for run in arm.results if run.seed in finding.values[arm.name]) for arm in arms}
        error = within_run_error(finding.values, runs)
    return replace(finding, effect=effect, num_seeds=1, error=error)


def _region(claim: Claim) -> tuple[float, float]:
    margin = claim.margin if claim.margin is not None else 0.0
    return {
        Relation.greater: (margin, inf),
        Relation.less: (-inf, -margin),
        Relation.within: (-margin, margin),
        Relation.ratio: (margin, inf) if margin >= 1 else (0.0, margin),
        Relation.converges: (0.0, margin),
        Relation.collapsed: (margin, 1.0),
        Relation.not_collapsed: (0.0, margin),
    }[claim.relation]


def _quantity(claim: Claim) -> str:
    if claim.relation in COUNTS:
        return f"share of seeds of {quoted(claim.arms[0])} that collapsed"
    if claim.relation == Relation.converges:
        return f"spread over {len(claim.arms)} arms"
    return f"{quoted(claim.arms[0])} {'/' if claim.relation == Relation.ratio else '−'} {quoted(claim.arms[1])}"


RELATIONS = {
    Relation.greater: _chain,
    Relation.less: _chain,
    Relation.within: _within,
    Relation.ratio: _ratio,
    Relation.converges: _converges,
    Relation.collapsed: _count,
    Relation.not_collapsed: _count,
}
