"""The page's colours: every text and line stands out from its ground, in both schemes."""

import re
from pathlib import Path

import numpy as np

import minirl.report

STYLE = Path(next(iter(minirl.report.__path__))) / "page.css"


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(one: str, other: str) -> float:
    """WCAG: (lighter + 0.05) / (darker + 0.05)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_and_lines_stand_out_in_both_schemes() -> None:
    blocks = re.findall(r":root \{(.*?)\}", STYLE.read_text(encoding="utf-8"), re.S)
    themes = [dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block)) for block in blocks]
    light, dark = themes[0], themes[1]
    assert luminance(light["paper"]) > 0.9
    assert luminance(dark["paper"]) < 0.02
    for theme in (light, dark):
        for name in ("ink", "muted", "good", "bad", "open", *(f"c{index}" for index in range(8))):
            for ground in ("paper", "card"):
                assert contrast(theme[name], theme[ground]) > 4.5, (name, ground)
