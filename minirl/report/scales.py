"""From values to pixels: linear and logarithmic axes with round ticks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from statistics import median

MOST_DECADES = 6  # a logarithmic axis shows no more than this below its top
FAR_DECADES = 3  # lines that lie lower than all others by more than this do not stretch it


@dataclass(frozen=True, slots=True)
class Scale:
    """low, high: the values at the pixels start and stop."""

    low: float
    high: float
    start: float
    stop: float
    logarithmic: bool

    def __call__(self, value: float) -> float:
        """The pixel of a value; values outside land on the edge."""
        if self.logarithmic:
            share = log10(max(value, self.low) / self.low) / log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + min(max(share, 0.0), 1.0) * (self.stop - self.start)

    def shows(self, value: float) -> bool:
        """Whether the value has a place: a logarithmic axis has none for what is not positive or below its low end."""
        return not self.logarithmic or value >= self.low

    def ticks(self, about: int) -> list[float]:
        """Round values inside: 1, 2, 5 times powers of ten; on a logarithmic axis powers of ten if there are two."""
        return _log_ticks(self.low, self.high) if self.logarithmic else _linear_ticks(self.low, self.high, about)


def fitted(values: Sequence[float], start: float, stop: float, *, logarithmic: bool) -> Scale:
    """A scale that shows all of `values` (positive ones, on a logarithmic axis), with a little room on both sides."""
    if logarithmic:
        high = max(values)
        low = max(min(values), high / 10**MOST_DECADES)
        room = max((high / low) ** 0.06, 1.15)
        return Scale(low / room, high * room, start, stop, True)
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    bottom = 0.0 if 0 <= low < room else low - room  # a scale that nearly begins at zero begins there
    return Scale(bottom, high + room, start, stop, False)


def far_below(lines: Mapping[int, Sequence[float]]) -> set[int]:
    """The keys of lines of another order of magnitude than the rest: all their values (positive ones) lie more than
    FAR_DECADES below the median of every other line. On a logarithmic axis they would push the rest into a strip: an
    engine in fp32 differs by rounding alone, 1e-8, beside one in fp8, 1e-3."""
    levels = {key: (median(line), max(line)) for key, line in lines.items() if line}
    order = sorted(levels, key=lambda key: levels[key])
    for place in range(len(order) - 1, 0, -1):
        if levels[order[place]][0] > 10**FAR_DECADES * max(levels[key][1] for key in order[:place]):
            return set(order[:place])
    return set()


def _linear_ticks(low: float, high: float, about: int) -> list[float]:
    rough = (high - low) / about
    power = 10.0 ** floor(log10(rough))
    step = next(multiple * power for multiple in (1, 2, 5, 10) if multiple * power >= rough * 0.999)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [float(f"{index * step:.10g}") for index in range(first, last + 1)]  # not 0.30000000000000004


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    tens = [10.0**decade for decade in decades if low <= 10.0**decade <= high]
    if len(tens) >= 2:
        return tens
    finer = [multiple * 10.0**decade for decade in decades for multiple in (1, 2, 5)]
    inside = [tick for tick in finer if low <= tick <= high]
    return inside if len(inside) >= 3 else _linear_ticks(low, high, 5)


def tick_label(value: float) -> str:
    """A tick, all of it, as short text: 0.5, 20, 0.99992, 10⁻³, 2·10⁻³."""
    if value == 0 or 1e-3 < abs(value) * 1.001 < 1e5:
        return f"{value:.10g}"
    exponent = floor(log10(abs(value)) + 1e-9)
    mantissa = value / 10.0**exponent
    power = f"10{str(exponent).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
    return power if abs(mantissa - 1) < 1e-6 else f"{mantissa:.10g}·{power}"
