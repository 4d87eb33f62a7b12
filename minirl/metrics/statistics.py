"""Numbers that can be gathered in parts: over micro-batches, then over ranks (implementations of types.Statistic).

Each holds sums, never finished figures, so the result does not depend on how the batch was cut. All are small,
picklable and made of Python numbers. A statistic of nothing has no figures: an absent metric means "nothing was
measured", and is never written as 0 or NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Generic, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor

from minirl.types import Statistic, Statistics


@dataclass(frozen=True, slots=True)
class Mean:
    """sum / count."""

    total: float
    count: float

    @classmethod
    def of(cls, values: Tensor) -> Self:
        """The mean of all entries; of booleans, the share that is true."""
        return cls(float(values.double().sum()), values.numel())

    def merge(self, other: Self) -> Self:
        return type(self)(self.total + other.total, self.count + other.count)

    def values(self, name: str) -> dict[str, float]:
        return {name: self.total / self.count} if self.count else {}


@dataclass(frozen=True, slots=True)
class Quotient:
    """sum of numerators / sum of denominators: a ratio of means, which is not a mean of ratios."""

    numerator: float
    denominator: float

    def merge(self, other: Self) -> Self:
        return type(self)(self.numerator + other.numerator, self.denominator + other.denominator)

    def values(self, name: str) -> dict[str, float]:
        return {name: self.numerator / self.denominator} if self.denominator else {}


@dataclass(frozen=True, slots=True)
class Sum:
    """A total. The only statistic that a copy changes: ranks must hold distinct responses."""

    total: float

    @classmethod
    def of(cls, values: Tensor) -> Self:
        return cls(float(values.double().sum()))

    def merge(self, other: Self) -> Self:
        return type(self)(self.total + other.total)

    def values(self, name: str) -> dict[str, float]:
        return {name: self.total}


@dataclass(frozen=True, slots=True)
class Max:
    """The largest entry; -inf stands for nothing."""

    largest: float

    @classmethod
    def of(cls, values: Tensor) -> Self:
        return cls(float(values.max()) if values.numel() else -math.inf)

    def merge(self, other: Self) -> Self:
        return type(self)(max(self.largest, other.largest))

    def values(self, name: str) -> dict[str, float]:
        return {name: self.largest} if self.largest > -math.inf else {}


@dataclass(frozen=True, slots=True)
class Min:
    """The smallest entry; inf stands for nothing."""

    smallest: float

    @classmethod
    def of(cls, values: Tensor) -> Self:
        return cls(float(values.min()) if values.numel() else math.inf)

    def merge(self, other: Self) -> Self:
        return type(self)(min(self.smallest, other.smallest))

    def values(self, name: str) -> dict[str, float]:
        return {name: self.smallest} if self.smallest < math.inf else {}


@dataclass(frozen=True, slots=True)
class Moments:
    """sqrt(squares / count), the standard deviation (of the entries, not of a sample of them).

    squares: sum of squared deviations from the mean. Merged by the pairwise update of Chan, Golub and LeVeque (1979),
    because the difference of two large sums would lose the digits that matter when the spread is small.
    """

    count: float
    mean: float
    squares: float

    @classmethod
    def of(cls, values: Tensor) -> Self:
        if not values.numel():
            return cls(0, 0.0, 0.0)
        mean = values.double().mean()
        return cls(values.numel(), float(mean), float((values.double() - mean).square().sum()))

    def merge(self, other: Self) -> Self:
        if not self.count or not other.count:
            return self if self.count else other
        count, gap = self.count + other.count, other.mean - self.mean
        mean = self.mean + gap * other.count / count
        return type(self)(count, mean, self.squares + other.squares + gap * gap * self.count * other.count / count)

    def values(self, name: str) -> dict[str, float]:
        return {name: math.sqrt(self.squares / self.count)} if self.count else {}


@dataclass(frozen=True, slots=True)
class EffectiveSampleSize:
    """(sum w)^2 / (n sum w^2) = 1 / mean((w / mean w)^2), in (0, 1]; absent where every weight is 0."""

    count: float
    total: float
    squares: float

    @classmethod
    def of(cls, weights: Tensor) -> Self:
        weights = weights.double()
        return cls(weights.numel(), float(weights.sum()), float(weights.square().sum()))

    def merge(self, other: Self) -> Self:
        return type(self)(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def values(self, name: str) -> dict[str, float]:
        return {name: self.total * self.total / (self.count * self.squares)} if self.squares else {}


# 32 bins per factor of ten from 1e-8 to 1e4: an edge is 7.5 % above the one before it. Together with the two outer
# bins that is 386, below the 512 that a W&B histogram may have.
EDGES: tuple[float, ...] = tuple(10.0 ** (step / 32 - 8) for step in range(12 * 32 + 1))


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of non-negative values in the fixed bins [0, EDGES[0]), [EDGES[i - 1], EDGES[i]), [EDGES[-1], inf).

    Figures: the exact mean under the bare name, `_p50` etc. for the quantiles (interpolated in their bin, so at most
    7.5 % off between 1e-8 and 1e4), and the exact `_max`.
    """

    suffixes: ClassVar[tuple[str, ...]] = ("", "_p<quantile>", "_max")
    quantiles: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    smallest: float
    largest: float

    @classmethod
    def of(cls, values: Tensor, quantiles: tuple[float, ...]) -> Self:
        values = values.double()
        bins = torch.bucketize(values, torch.tensor(EDGES, dtype=torch.float64, device=values.device), right=True)
        counts = torch.bincount(bins, minlength=len(EDGES) + 1).tolist()
        smallest, largest = (float(values.min()), float(values.max())) if values.numel() else (math.inf, -math.inf)
        return cls(quantiles, tuple(counts), float(values.sum()), smallest, largest)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def merge(self, other: Self) -> Self:
        return type(self)(
            self.quantiles,
            tuple(mine + its for mine, its in zip(self.counts, other.counts, strict=True)),
            self.total + other.total,
            min(self.smallest, other.smallest),
            max(self.largest, other.largest),
        )

    def quantile(self, share: float) -> float:
        """The value below which `share` of the entries lie, on a straight line across the bin that it falls into."""
        target = share * self.count
        place = next(i for i, upto in enumerate(accumulate(self.counts)) if upto >= target and upto > 0)
        below = sum(self.counts[:place])
        low = max(EDGES[place - 1] if place else 0.0, self.smallest)
        high = min(EDGES[place] if place < len(EDGES) else math.inf, self.largest)
        return low + (high - low) * (target - below) / self.counts[place]

    def values(self, name: str) -> dict[str, float]:
        if not self.count:
            return {}
        figures = {f"{name}_p{100 * share:g}": self.quantile(share) for share in self.quantiles}
        return {name: self.total / self.count, **figures, f"{name}_max": self.largest}

    def bins(self) -> tuple[list[float], list[float]]:
        """(edges, counts), one more edge than counts, cut to the occupied range: for a plot or a W&B histogram."""
        occupied = [place for place, count in enumerate(self.counts) if count]
        first, last = (occupied[0], occupied[-1] + 1) if occupied else (0, 0)
        edges = [0.0, *EDGES, max(self.largest, EDGES[-1])]
        return edges[first : last + 1], list(self.counts[first:last])


class Distribution(Histogram):
    """A histogram to be drawn, of what other statistics have the figures of."""

    suffixes: ClassVar[tuple[str, ...]] = ()

    def values(self, name: str) -> dict[str, float]:
        return {}


@runtime_checkable
class Binned(Protocol):
    """A statistic that can be drawn as bars: [n + 1] edges, [n] heights."""

    def bins(self) -> tuple[list[float], list[float]]: ...


Observed = TypeVar("Observed")
Estimators = Mapping[str, Callable[[Observed], Statistic]]


@dataclass(frozen=True)
class Family(Generic[Observed]):
    """Estimators that look at the same thing, logged as `prefix + name`. The metric reference is made from these."""

    prefix: str
    estimators: Estimators[Observed]

    def measure(self, observed: Observed) -> Statistics:
        return {self.prefix + name: estimate(observed) for name, estimate in self.estimators.items()}


def histograms(statistics: Statistics) -> dict[str, tuple[list[float], list[float]]]:
    """(edges, heights) of everything among the statistics that can be drawn as bars, by metric name."""
    return {name: found.bins() for name, found in statistics.items() if isinstance(found, Binned)}
