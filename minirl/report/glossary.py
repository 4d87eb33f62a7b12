"""The page of the metric dictionary: `python -m minirl.report.glossary > docs/metric_dictionary.md`."""

from __future__ import annotations

import sys

from minirl.report.dictionary import ENTRIES, Name, columns
from minirl.report.stacks import FALSE_FRIENDS, STACKS

HEADER = """# Metric dictionary

Generated from `minirl/report/dictionary.py`; do not edit: `make docs`.

What other stacks call the metrics of [metrics.md](metrics.md), and what `minirl compare` reads from their logs. A sign
of -1 means that theirs is ours with the sign turned. Where a remark stands, theirs is near ours and not the same: such
curves may be compared in shape, not in level.

mu samples, pi_old is the trainer with the weights that sampled, pi_theta the trainer now. Logarithms are natural. For
samples of mu and rho = pi_old / mu, k1 and k3 both estimate KL(mu || pi_old), whatever a stack calls it.
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _names(name: Name) -> str:
    return " or ".join(f"`{each}`" for each in (name.name, *name.aliases))


def page() -> str:
    """docs/metric_dictionary.md."""
    lines = [HEADER, "## Ours, and what is healthy", "", "| ours | what it is | healthy |", "|---|---|---|"]
    lines += [f"| `{entry.ours}` | {_cell(entry.meaning)} | {_cell(entry.healthy)} |" for entry in ENTRIES]
    for key, stack in STACKS.items():
        first = f"Its steps are {stack.counts}, the first one {stack.first_step}."
        lines += ["", f"## {stack.title}", "", f"{stack.title} {stack.version}. {first} Read in:", ""]
        lines += [f"- `{file}`" for file in stack.files]
        lines += ["", "| ours | theirs | sign | remark |", "|---|---|---|---|"]
        lines += [
            f"| `{entry.ours}` | {_names(name)} | {name.factor:+.0f} | {_cell(name.caveat)} |"
            for entry, name in columns(key)
        ]
        friends = FALSE_FRIENDS.get(key, {})
        if friends:
            lines += ["", "Not imported, although it looks alike:", ""]
            lines += [f"- `{name}`: {_cell(why)}" for name, why in friends.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
