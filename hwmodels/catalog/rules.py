"""Rules that fill what a file leaves open; their numbers are data, each with a reason.

`estimates.yaml` holds rules for chips, `links.yaml` what each link technology is like. What was
fitted to measured collectives stands in the calibration's own `links.yaml`, in the same form; an
entry of the catalogue takes it over with `like: NAME`, its own numbers before those.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hwmodels.catalog.names import CATALOG
from hwmodels.sourced import Section, Sourced, load_document


class LinkNumber(NamedTuple):
    """A number of a link technology: its field in `network.Level` and its dimension."""

    field: str
    dimension: str


# Key of a technology in either file to what it is.
LINK_NUMBERS: Mapping[str, LinkNumber] = {
    "efficiency": LinkNumber("efficiency", ""),
    "latency": LinkNumber("latency_s", "s"),
    "start": LinkNumber("start_s", "s"),
    "fast_start": LinkNumber("fast_start_s", "s"),
    "fast_rate": LinkNumber("fast_rate", ""),
    "own_share": LinkNumber("own_share", ""),
    "reduction_start": LinkNumber("reduction_start_s", "s"),
    "reduction_rate": LinkNumber("reduction_rate", ""),
}
_REQUIRED = ("efficiency", "latency", "start", "fast_start", "fast_rate")
_TECHNOLOGY_KEYS = ("about", "like", "in_network_reduction", *LINK_NUMBERS)
_FITTED_KEYS = ("about", "data", "source", "status", *LINK_NUMBERS)
FITTED = Path(__file__).parent.parent / "calibration" / "links.yaml"


@dataclass(frozen=True)
class Technology:
    """What a link technology is like where a file does not say.

    Args:
        name: Its key in `links.yaml`.
        numbers: Field of `network.Level` to its value, SI; those that are not stated are left out.
        in_network_reduction: Whether its switches add up.
    """

    name: str
    numbers: Mapping[str, Sourced]
    in_network_reduction: bool


@cache
def estimate(name: str) -> Sourced:
    """A rule of `estimates.yaml`: its number, and its reason as the source."""
    rules = load_document(CATALOG / "estimates.yaml", kinds=("estimates",)).section("rules")
    rule = None if rules is None else rules.ratio(name)
    if rule is None:
        raise KeyError(name)
    return replace(rule, status="estimated")


@cache
def fitted() -> dict[str, Mapping[str, Sourced]]:
    """Technology, or family of them, to what was fitted to its measured collectives."""
    if not FITTED.is_file():
        return {}
    section = load_document(FITTED, kinds=("links",)).section("technologies")
    found: dict[str, Mapping[str, Sourced]] = {}
    for name in section or ():
        entry = None if section is None else section.section(name)
        if entry is not None:
            entry.only(_FITTED_KEYS, required=("data", "source", "status"))
            found[name] = _numbers(entry.inheriting())
    return found


@cache
def technologies() -> dict[str, Technology]:
    """Every link technology by name."""
    top = load_document(CATALOG / "links.yaml", kinds=("links",))
    section = top.section("technologies")
    return {} if section is None else {name: _technology(section, name) for name in section}


def technology(section: Section, key: str, default: str) -> Technology:
    """The technology that a key of a file names.

    Raises:
        ConfigError: An unknown one.
    """
    known = technologies()
    name = section.text(key, default)
    if name not in known:
        near = difflib.get_close_matches(name[:40].lower(), known, n=1, cutoff=0.5)
        section.refuse(
            key,
            f"unknown link technology {name[:40]!r}",
            value=name,
            allowed=list(known),
            hint=f"did you mean {near[0]!r}?" if near else "take one of the two `other-` rules",
        )
    return known[name]


def _technology(parent: Section, name: str) -> Technology:
    section = parent.section(name)
    if section is None:
        parent.refuse(name, "has no rules")
    section.only(_TECHNOLOGY_KEYS, required=("about",))
    numbers = dict(_numbers(section))
    if "like" in section:
        model = section.text("like")
        if model not in fitted():
            section.refuse("like", "was not fitted", value=model, allowed=list(fitted()))
        numbers = {**_transferred(fitted()[model], model, name), **numbers}
    missing = [key for key in _REQUIRED if LINK_NUMBERS[key].field not in numbers]
    if missing:
        section.refuse(None, "missing " + ", ".join(missing))
    return Technology(name, numbers, section.flag("in_network_reduction", False))


def _numbers(section: Section) -> Mapping[str, Sourced]:
    found = {
        number.field: section.quantity(key, "s", zero=True)
        if number.dimension
        else section.ratio(key, minimum=0.0, maximum=1.0)
        for key, number in LINK_NUMBERS.items()
    }
    return {field: value for field, value in found.items() if value is not None}


def _transferred(numbers: Mapping[str, Sourced], model: str, name: str) -> Mapping[str, Sourced]:
    """The numbers of `model` for technology `name`, estimated where it is another one."""
    if model == name:
        return numbers
    return {
        field: replace(number, source=f"as {model}: {number.source}", status="estimated")
        for field, number in numbers.items()
    }
