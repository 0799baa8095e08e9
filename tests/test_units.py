"""The unit parser, against pint and against what it must refuse."""

from __future__ import annotations

import math
from typing import Any

import pint
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwmodels.errors import UnitError
from hwmodels.units import UNITS, format_quantity, parse

pytestmark = pytest.mark.fast

# What pint calls our units; `b` is its barn, so bits and bytes are spelt out.
_PINT_BASE = {
    "bytes": "byte",
    "bytes_per_s": "byte/second",
    "s": "second",
    "hz": "hertz",
    "w": "watt",
    "j": "joule",
    "mm2": "mm**2",
}


@pytest.fixture(scope="module")
def registry() -> Any:
    return pint.UnitRegistry()


def _for_pint(unit: str) -> str:
    stem = unit.removesuffix("/s")
    if stem != unit or stem.endswith("B"):
        if stem.endswith("bit"):
            stem = stem.removesuffix("bit") + "bit"
        elif stem.endswith("b"):
            stem = stem.removesuffix("b") + "bit"
        else:
            stem = stem.removesuffix("B") + "byte"
    stem = stem.replace("²", "**2").replace("mm2", "mm**2").replace("cm2", "cm**2")
    return stem + ("/second" if unit.endswith("/s") else "")


@pytest.mark.parametrize(
    ("dimension", "unit"), [(d, unit) for d in _PINT_BASE for unit in UNITS[d]]
)
def test_every_unit_agrees_with_pint(registry: Any, dimension: str, unit: str) -> None:
    """A quantity means what the units library says it means."""
    expected = registry.Quantity(3.5, _for_pint(unit)).to(_PINT_BASE[dimension]).magnitude
    assert parse(f"3.5 {unit}", dimension) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("400 Gb/s", "bytes_per_s", 50e9),  # 400e9 bits / 8
        ("400 GB/s", "bytes_per_s", 400e9),
        ("3.35 TB/s", "bytes_per_s", 3.35e12),
        ("80 GiB", "bytes", 80 * 2**30),
        ("80GB", "bytes", 80e9),
        ("989.4 TFLOP/s", "flop_per_s", 989.4e12),
        ("1.5 us", "s", 1.5e-6),
        ("1.5 µs", "s", 1.5e-6),
        ("1.83 GHz", "hz", 1.83e9),
        ("10.2 kW", "w", 10_200.0),
        ("814 mm2", "mm2", 814.0),
        ("3 MUSD", "usd", 3e6),
        ("2.99 USD/h", "usd_per_hour", 2.99),
        ("0.08 USD/kWh", "usd_per_kwh", 0.08),
        (" 1e3 s ", "s", 1000.0),
        ("0 us", "s", 0.0),
    ],
)
def test_worked_values(text: str, dimension: str, value: float) -> None:
    """Quantities as data sheets print them."""
    assert parse(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "dimension", "told"),
    [
        (200, "bytes_per_s", "has no unit"),
        (1e9, "bytes_per_s", "has no unit"),
        ("200", "bytes_per_s", "has no unit"),
        ("400 gb/s", "bytes_per_s", "Gb/s is bits"),
        ("400G", "bytes_per_s", "Gb/s for bits or GB/s for bytes"),
        ("400 Gbps", "bytes_per_s", "Gb/s for bits or GB/s for bytes"),
        ("80 GiB", "bytes_per_s", "GiB is a unit of capacity"),
        ("80 Gb", "bytes", "GB"),
        ("312 TFLOPS", "flop_per_s", "write TFLOP/s"),
        ("312 tflop/s", "flop_per_s", "TFLOP/s"),
        ("700 watt", "w", "700 W"),
        ("nan GB", "bytes", "finite"),
        ("inf GB", "bytes", "finite"),
        ("1e400 GB", "bytes", "finite"),
        ("-80 GB", "bytes", "finite value of zero or more"),
        ("-0 GB", "bytes", "finite value of zero or more"),
        ("1e25 PB", "bytes", "beyond any machine"),
        ("1,024 GB", "bytes", "unknown unit"),
        ("٣ GB", "bytes", "not a capacity"),
        ("", "s", "not a time"),
        (True, "s", "not a time"),
        (None, "w", "not a power"),
    ],
)
def test_refused_with_the_way_out(text: object, dimension: str, told: str) -> None:
    """A bare number, a wrong unit or a slip of case is refused, and told what to write."""
    with pytest.raises(UnitError) as caught:
        parse(text, dimension, file="a.yaml", line=7, field="links.scaleup")
    error = caught.value
    assert told in str(error)
    assert str(error).startswith("a.yaml:7: links.scaleup: ")
    assert (error.file, error.line, error.field, error.value) == (
        "a.yaml",
        7,
        "links.scaleup",
        text,
    )
    assert error.allowed
    assert error.hint


@given(st.text(max_size=30), st.sampled_from(sorted(UNITS)))
def test_any_text_is_a_value_or_a_unit_error(text: str, dimension: str) -> None:
    """Nothing but a finite value of zero or more, or a UnitError, comes out."""
    try:
        value = parse(text, dimension)
    except UnitError:
        return
    assert math.isfinite(value)
    assert value >= 0


@given(st.floats(1e-12, 1e24), st.sampled_from(sorted(UNITS)))
def test_what_is_printed_reads_back(value: float, dimension: str) -> None:
    """A printed quantity, where it has no thousands separator, parses to its four digits."""
    printed = format_quantity(value, dimension)
    if "," not in printed:
        assert parse(printed, dimension) == pytest.approx(value, rel=5e-4)


def test_printed_units() -> None:
    """Capacity is printed in GiB, rates in GB/s and TFLOP/s, time in the unit that fits."""
    assert format_quantity(80 * 2**30, "bytes") == "80 GiB"
    assert format_quantity(3.35e12, "bytes_per_s") == "3350 GB/s"
    assert format_quantity(989.4e12, "flop_per_s") == "989.4 TFLOP/s"
    assert format_quantity(7e-7, "s") == "700 ns"
    assert format_quantity(12.345, "s") == "12.35 s"
    assert format_quantity(0.0, "s") == "0 s"
    assert format_quantity(31_250, "usd") == "31,250 USD"
