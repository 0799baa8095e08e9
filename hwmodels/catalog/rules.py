"""Rules that fill what a file leaves open; their numbers are data, each with a reason.

`estimates.yaml` holds rules for chips, `links.yaml` what each link technology is like.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from functools import cache

from hwmodels.catalog.names import CATALOG
from hwmodels.sourced import Section, Sourced, load_document

_TECHNOLOGY_KEYS = ("about", "efficiency", "latency", "in_network_reduction")


@dataclass(frozen=True)
class Technology:
    """What a link technology is like where a file does not say.

    Args:
        name: Its key in `links.yaml`.
        efficiency: Share of the nominal rate that large messages reach.
        latency: One step of a collective between neighbours, software included; seconds.
        in_network_reduction: Whether its switches add up.
    """

    name: str
    efficiency: Sourced
    latency: Sourced
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
    section.only(_TECHNOLOGY_KEYS, required=("about", "efficiency", "latency"))
    efficiency = section.ratio("efficiency", minimum=0.01, maximum=1.0)
    latency = section.quantity("latency", "s", required=True)
    if efficiency is None or latency is None:
        section.refuse(None, "needs an efficiency and a latency")
    return Technology(name, efficiency, latency, section.flag("in_network_reduction", False))
