"""Under which names figures are logged: what a claim may ask for. Read from the reference page's own sources."""

from __future__ import annotations

import re

from minirl.metrics.reference import ELSEWHERE, docstring, entries

# what stands in a name for a part that varies
PLACEHOLDERS = {
    "<quantile>": r"\d+",
    "<layer>": r"\d+",
    "<position>": r"(prompt|\d+)",
    "PHASE": r"\w+?",
}


def logged_names() -> list[str]:
    """Every name of the reference page, placeholders and all. Imports the modules that log."""
    families = [name for entry in entries() for name in entry.names]
    spoken = [
        name
        for prefix, (file, function) in ELSEWHERE.items()
        for name in re.findall(rf"{prefix}\w+", docstring(file, function))
    ]
    return [*families, *dict.fromkeys(spoken)]


def is_name_of(metric: str, name: str) -> bool:
    """Whether `metric` is `name`, a part in the place of each placeholder; eval_SET/* has the names of eval/*."""
    metric = re.sub(r"^eval_[a-z]\w*/", "eval/", metric)
    pattern = re.escape(name)
    for placeholder, part in PLACEHOLDERS.items():
        pattern = pattern.replace(re.escape(placeholder), part)
    return re.fullmatch(pattern, metric) is not None
