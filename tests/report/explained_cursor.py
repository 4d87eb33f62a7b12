"""What the cursor of every plot must tell, wherever it stands, on the axis of updates and on that of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from ledger import Number, Part, count, refusal
from recomputed import Truth, letter
from recomputed_curves import band, sampled

# every plot walked through from Home to the end by key; [metric, [[line of the tip, ...], ...]]
WALK = """(axis => {
  document.querySelector(`input[value=${axis}]`)?.click();
  return [...document.querySelectorAll('figure[data-metric]')].map(figure => {
    const press = key => figure.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
    const seen = [];
    for (const part of document.querySelectorAll('details')) part.open = true;
    for (press('Home'); ; press('ArrowRight')) {
      const lines = [...figure.querySelectorAll('.tip p')].map(line => [...line.children].map(e => e.textContent));
      if (seen.length && JSON.stringify(lines) === JSON.stringify(seen.at(-1))) break;
      seen.push(lines);
    }
    return [figure.dataset.metric, seen];
  });
})"""


def wrong(truth: Truth, walked: list[Any], plots: dict[str, Any], axis: str) -> list[str]:
    """What a walk found that is not so. plots: those of the page's script, for which axes are logarithmic."""
    found = []
    for metric, tips in walked:
        curves = {}
        for index, arm in enumerate(truth.arms):
            over = band(truth, arm, metric, log=plots[metric]["log"])
            if over is not None:
                known = sampled(truth, arm)
                tokens = [np.interp(over.versions, *points) for points in known]
                at = over.versions if axis == "updates" else np.rint(np.mean(tokens, axis=0))
                curves[f"{letter(index)} {arm}"] = (at, over.mean)
        stands = np.unique(np.concatenate([at for at, _ in curves.values()]))
        if len(tips) != len(stands):
            found.append(f"{metric}: {len(tips)} places, expected {len(stands)}")
        for place, (head, *lines) in zip(stands, tips, strict=False):
            expected = {name: told(place, *points) for name, points in curves.items() if points[0][0] <= place}
            said = dict(lines)
            parts: dict[str, list[Part]] = {axis.removesuffix("s") if axis == "updates" else axis: [whole(place)]}
            checks = [(dict([head]), parts), (said, expected)]
            for there, wanted in checks:
                if there.keys() != wanted.keys():
                    found.append(f"{metric} at {place}: {list(there)}, expected {list(wanted)}")
                found += [
                    f"{metric} at {place}, {n}: {r}"
                    for n in there
                    if n in wanted and (r := refusal(there[n], wanted[n]))
                ]
    return found


def told(place: float, at: np.ndarray, values: np.ndarray) -> list[Part]:
    """The value at the place; where there is none, the last one before, and where that was measured."""
    last = int(np.searchsorted(at, place, side="right")) - 1
    number = Number(float(values[last]))
    return [number] if at[last] == place else [number, " at ", whole(float(at[last]))]


def whole(value: float) -> Number:
    """A count of updates or of tokens."""
    return count(value) if float(value).is_integer() else Number(value, decimals=0)
