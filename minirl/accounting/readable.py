"""Numbers as people read them."""

from __future__ import annotations


def in_bytes(number: float) -> str:
    """12 kB, 3.4 MB, ..."""
    return _scaled(number, ("B", "kB", "MB", "GB", "TB"), " ")


def in_count(number: float) -> str:
    """950, 338k, 30.5G, ..."""
    return _scaled(number, ("", "k", "M", "G", "T"), "")


def in_time(seconds: float) -> str:
    """0.31 s, 40 min, 33 d."""
    for unit, length, limit in (("s", 1.0, 100.0), ("min", 60.0, 6000.0), ("h", 3600.0, 172800.0)):
        if seconds < limit:
            return f"{seconds / length:.2g} {unit}" if seconds / length < 10 else f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def _scaled(number: float, units: tuple[str, ...], gap: str) -> str:
    size, unit = float(number), units[0]
    for unit in units:
        if size < 1000 or unit == units[-1]:
            break
        size /= 1000
    return f"{size:.3g}{gap}{unit}"
