"""Published area, TDP and area shares of real dies, with each die described in the template's
terms."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Literal, cast

from hwmodels.accelerator.template import Systolic, read_fields
from hwmodels.sourced import Section, document

Bound = Literal["exact", "upper", "lower"]
BOUNDS = ("exact", "upper", "lower")


@dataclass(frozen=True, slots=True)
class Published:
    """One published figure: exact, an upper bound (`less than`) or a lower bound."""

    value: float
    bound: Bound


@dataclass(frozen=True, slots=True)
class KnownSilicon:
    """One die.

    Args:
        name: Of the silicon, not of a product.
        design: Its description.
        area_mm2: Die area.
        tdp_w: Power of the package.
        shares: Part of `area_parts_mm2` to the published share of the die, before unused area.
        source: Where the figures come from.
    """

    name: str
    design: Systolic
    area_mm2: Published
    tdp_w: Published
    shares: tuple[tuple[str, float], ...]
    source: str


@lru_cache(maxsize=1)
def load_known_silicon() -> tuple[KnownSilicon, ...]:
    """The dies that the package knows, in file order."""
    name = "known_silicon.yaml"
    text = files("hwmodels.accelerator").joinpath(name).read_text(encoding="utf-8")
    entries = document(text, name, kinds=("known_silicon",)).section("silicons")
    if entries is None:
        return ()
    return tuple(_silicon(key, entries.section(key)) for key in entries)


def _silicon(name: str, entry: Section | None) -> KnownSilicon:
    if entry is None:
        raise ValueError(f"{name} is empty")
    section = cast(Section, entry.section("design"))
    # Real dies exist: they are not held against the limits, which are themselves fitted on them.
    design = Systolic.model_construct(**read_fields(section))
    shares = entry.section("shares")
    return KnownSilicon(
        name=name,
        design=design,
        area_mm2=_published(entry, "area", "mm2"),
        tdp_w=_published(entry, "tdp", "w"),
        shares=() if shares is None else tuple((key, shares.number(key)) for key in shares),
        source=entry.text("source"),
    )


def _published(entry: Section, key: str, dimension: str) -> Published:
    fact = entry.quantity(key, dimension, required=True)
    if fact is None:
        raise ValueError(f"{key} is required")
    bound = cast(Bound, entry.choice(f"{key}_bound", BOUNDS, default="exact"))
    return Published(value=fact.value, bound=bound)
