"""Quantities in files are text with a unit; inside they are SI floats.

Only this module knows prefixes. Case counts: `Gb/s` is bits and `GB/s` is bytes, `mW` is not `MW`.
Decimal prefixes are powers of 1000, `KiB` to `PiB` powers of 1024 (IEC 80000-13).
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass

from hwmodels.errors import UnitError

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTP", start=1)}
_SMALL = {"m": 1e-3, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "n": 1e-9, "p": 1e-12}


def _scaled(unit: str, prefixes: dict[str, float], factor: float = 1.0) -> dict[str, float]:
    return {f"{prefix}{unit}": scale * factor for prefix, scale in prefixes.items()}


_BYTES = _scaled("B", _DECIMAL | _BINARY)

UNITS: dict[str, dict[str, float]] = {
    "bytes": _BYTES,
    "bytes_per_s": {
        **{f"{unit}/s": factor for unit, factor in _BYTES.items()},
        **_scaled("b/s", _DECIMAL, 1 / 8),
        **_scaled("bit/s", _DECIMAL, 1 / 8),
    },
    "flop_per_s": _scaled("FLOP/s", _DECIMAL),
    "s": _scaled("s", {"": 1.0} | _SMALL)
    | {"min": 60.0, "h": 3600.0, "day": 86400.0, "days": 86400.0},
    "hz": _scaled("Hz", _DECIMAL),
    "w": _scaled("W", _DECIMAL | {"m": 1e-3}),
    "j": _scaled("J", _DECIMAL | _SMALL) | {"kWh": 3.6e6, "MWh": 3.6e9},
    "mm2": {"mm2": 1.0, "mm²": 1.0, "cm2": 100.0, "cm²": 100.0},
    "usd": {"USD": 1.0, "kUSD": 1e3, "MUSD": 1e6},
    "usd_per_hour": {"USD/h": 1.0, "USD/hour": 1.0},
    "usd_per_kwh": {"USD/kWh": 1.0},
}
"""Dimension to its units, each with its factor to the stored unit (the dimension's own name)."""


@dataclass(frozen=True)
class _Speech:
    """How a dimension is spoken of: its name, an example, the units named and those printed in."""

    word: str
    example: str
    named: tuple[str, ...]
    printed: tuple[str, ...]


_SPEECH = {
    "bytes": _Speech("capacity", '"80 GiB"', ("GB", "GiB", "TB"), ("GiB",)),
    "bytes_per_s": _Speech(
        "data rate",
        '"3.35 TB/s" (bytes) or "400 Gb/s" (bits)',
        ("GB/s", "TB/s", "GiB/s", "Gb/s", "Tb/s"),
        ("GB/s",),
    ),
    "flop_per_s": _Speech(
        "FLOP rate", '"989.4 TFLOP/s"', ("GFLOP/s", "TFLOP/s", "PFLOP/s"), ("TFLOP/s",)
    ),
    "s": _Speech(
        "time",
        '"1.5 us"',
        ("ns", "us", "ms", "s", "min", "h", "day"),
        ("day", "h", "min", "s", "ms", "us", "ns"),
    ),
    "hz": _Speech("frequency", '"1.83 GHz"', ("MHz", "GHz"), ("GHz",)),
    "w": _Speech("power", '"700 W"', ("W", "kW", "MW"), ("MW", "kW", "W")),
    "j": _Speech(
        "energy",
        '"3.9 pJ"',
        ("pJ", "nJ", "J", "kWh", "MWh"),
        ("MWh", "kWh", "J", "mJ", "uJ", "nJ", "pJ"),
    ),
    "mm2": _Speech("area", '"814 mm2"', ("mm2", "cm2"), ("mm2",)),
    "usd": _Speech("price", '"31250 USD"', ("USD", "kUSD", "MUSD"), ("USD",)),
    "usd_per_hour": _Speech("price of an hour", '"2.99 USD/h"', ("USD/h",), ("USD/h",)),
    "usd_per_kwh": _Speech("price of energy", '"0.08 USD/kWh"', ("USD/kWh",), ("USD/kWh",)),
}
_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[+-]?(?:nan|inf(?:inity)?))\s*(.*)",
    re.IGNORECASE | re.DOTALL,
)
# Outside this range a quantity is a slip of the keyboard, and later products would overflow.
_LARGEST = 1e30
_SMALLEST = 1e-30


def parse(
    text: object,
    dimension: str,
    *,
    file: str | None = None,
    line: int | None = None,
    field: str | None = None,
) -> float:
    """A quantity written with its unit, as an SI float.

    Args:
        text: Such as `"3.35 TB/s"`, `"400 Gb/s"`, `"80 GiB"`, `"1.5 us"`.
        dimension: A key of `UNITS`; it also names the unit of the result.
        file: Where the text stands, for the error.
        line: Its line, counted from 1.
        field: The dotted name of the field, or the flag.

    Returns:
        The value, zero or positive, in the unit that `dimension` names.

    Raises:
        UnitError: No unit, an unknown unit, a unit of another dimension, or no finite value >= 0.
    """
    units, speech = UNITS[dimension], _SPEECH[dimension]

    def refuse(message: str, hint: str) -> UnitError:
        return UnitError(
            f"{field or 'the quantity'}: {message}",
            file=file,
            line=line,
            field=field,
            value=text,
            allowed=list(speech.named),
            hint=hint,
        )

    example = f"write it like {speech.example}"
    if isinstance(text, int | float) and not isinstance(text, bool):
        raise refuse(f"{text!r} has no unit, and a {speech.word} needs one", example)
    match = _QUANTITY.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or not isinstance(text, str):
        raise refuse(f"{_clipped(text)} is not a {speech.word} with its unit", example)
    number, unit = match.groups()
    if not unit:
        raise refuse(f"{_clipped(text)} has no unit, and a {speech.word} needs one", example)
    if unit not in units:
        message, hint = _why_not(unit, dimension)
        raise refuse(f"{_clipped(text)}: {message}", hint or example)
    value = float(number) * units[unit]
    if not math.isfinite(value) or value < 0 or math.copysign(1.0, value) < 0:
        raise refuse(f"{_clipped(text)} is not a finite value of zero or more", example)
    if value > _LARGEST or 0 < value < _SMALLEST:
        raise refuse(f"{_clipped(text)} is beyond any machine", example)
    return value


def format_quantity(value: float, dimension: str) -> str:
    """A stored value for people: GiB of capacity, GB/s, TFLOP/s; four significant digits."""
    choices = _SPEECH[dimension].printed
    unit = choices[-1]
    for candidate in choices:
        if abs(value) >= UNITS[dimension][candidate]:
            unit = candidate
            break
    if value == 0:
        unit = choices[len(choices) // 2]
    scaled = value / UNITS[dimension][unit]
    digits = f"{scaled:.4g}" if abs(scaled) < 1e4 else f"{scaled:,.0f}"
    return f"{digits} {unit}"


def _why_not(unit: str, dimension: str) -> tuple[str, str | None]:
    units, word = UNITS[dimension], _SPEECH[dimension].word
    owner = next((name for name, known in UNITS.items() if unit in known), None)
    if owner is not None:
        return f"{unit} is a unit of {_SPEECH[owner].word}, not of {word}", None
    message, folded = f"unknown unit {_clipped(unit)}", unit.casefold()
    same_letters = [known for known in units if known.casefold() == folded]
    if same_letters:
        meanings = " or ".join(f"{known}{_bits_or_bytes(known)}" for known in same_letters)
        return message, f"case counts: {meanings}"
    if dimension == "flop_per_s" and (near := re.match(r"([kmgtpe]?)flops?", folded)):
        return message, f"write {near.group(1).upper()}FLOP/s"
    if dimension == "bytes_per_s" and (near := re.fullmatch(r"([kmgt])(?:b|bps|bit)?", folded)):
        letter = near.group(1).upper().replace("K", "k")
        return message, f"write {letter}b/s for bits or {letter}B/s for bytes"
    alike = difflib.get_close_matches(unit[:20], units, n=3, cutoff=0.5)
    return message, f"did you mean {' or '.join(alike)}?" if alike else None


def _bits_or_bytes(unit: str) -> str:
    if unit.endswith("B/s"):
        return " is bytes"
    return " is bits" if unit.endswith("b/s") else ""


def _clipped(text: object) -> str:
    written = repr(text)
    return written if len(written) <= 42 else written[:38] + "...'"
