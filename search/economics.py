"""What energy, time and money cost a study: defaults with their sources, changed by its file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hwmodels.sourced import PROVENANCE_KEYS, Section, load_document

DEFAULTS = Path(__file__).parent / "defaults.yaml"
QUANTITIES = {"electricity": ("usd_per_kwh", "usd_per_kwh"), "life": ("life_s", "s")}
RATIOS = {
    "pue": (1.0, 3.0),
    "utilisation": (0.01, 1.0),
    "markup": (0.1, 100.0),
}
ECONOMICS_KEYS = (*QUANTITIES, *RATIOS)


@dataclass(frozen=True, slots=True)
class Economics:
    """Prices of energy and time.

    Args:
        usd_per_kwh: Electricity.
        life_s: Seconds over which the cluster is written off.
        pue: Power of the building over that of the computers.
        utilisation: Share of its life that the cluster trains.
        markup: Price paid for chips over what they cost to make; the network's is a price paid.
    """

    usd_per_kwh: float
    life_s: float
    pue: float
    utilisation: float
    markup: float


@cache
def default_economics() -> Economics:
    """The defaults that the package ships."""
    top = load_document(DEFAULTS, kinds=("study_defaults",))
    values, ratios = top.section("values"), top.section("ratios")
    if values is None or ratios is None:
        top.refuse(None, "missing values or ratios")
    return Economics(**_numbers(values) | _numbers(ratios))


def read_economics(top: Section) -> Economics:
    """The economics of a space file: its `economics:` over the defaults.

    Raises:
        ConfigError: An unknown key, or a value out of its range.
        UnitError: A price or time without its unit.
    """
    known = default_economics()
    section = top.section("economics")
    if section is None:
        return known
    section.only((*ECONOMICS_KEYS, *PROVENANCE_KEYS))
    fields = {name: getattr(known, name) for name in known.__slots__}
    return Economics(**fields | _numbers(section))


def _numbers(section: Section) -> dict[str, float]:
    found: dict[str, float] = {}
    for key, (field, dimension) in QUANTITIES.items():
        fact = section.quantity(key, dimension, zero=key == "electricity")
        if fact is not None:
            found[field] = fact.value
    for key, (least, most) in RATIOS.items():
        fact = section.ratio(key, minimum=least, maximum=most)
        if fact is not None:
            found[key] = fact.value
    return found
