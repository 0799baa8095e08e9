"""A network level as files state it, completed by what its link technology is like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hwmodels.catalog import rules
from hwmodels.catalog.sizing import Shape, wraps
from hwmodels.chip import Chip
from hwmodels.network import Level, LevelKind
from hwmodels.sourced import Section, Sourced

KINDS = ("switch", "full_mesh", "cube_mesh", "ring", "line", "torus")
ONE_LINK = ("ring", "line", "torus")
KEYS = (
    *("name", "kind", "technology", "size", "axes", "unit"),
    *("rate", "link_rate", "nics_per_node", "nic_rate"),
    *("latency", "efficiency", "oversubscription", "in_network_reduction"),
)
REQUIRED = ("name",)


@dataclass(frozen=True)
class LevelSpec:
    """One level before the job's size is known.

    Args:
        name: Its name.
        kind: A kind of `Level`, or `torus`, which becomes one level an axis.
        shape: What decides its size.
        technology: Key of the link rules.
        rate: One chip's share, one direction; of one link for `ring`, `line` and `torus`.
        link: What the link is like, by field of `network.Level`.
        oversubscription: What crosses the level is divided by it.
        in_network_reduction: Whether its switches add up.
    """

    name: str
    kind: str
    shape: Shape
    technology: str
    rate: Sourced
    link: Mapping[str, Sourced]
    oversubscription: float = 1.0
    in_network_reduction: bool = False

    def facts(self) -> dict[str, Sourced]:
        """Provenance by dotted name."""
        stem = f"levels.{self.name}"
        return {
            f"{stem}.bytes_per_s_per_chip_per_dir": self.rate,
            **{f"{stem}.{field}": number for field, number in self.link.items()},
        }

    def sized(self, sizes: tuple[int, ...]) -> list[Level]:
        """The level at its size, or the axes of a torus."""
        if self.kind == "torus":
            wrapped = wraps(sizes, self.shape.unit)
            return [
                self._level(f"{self.name}_{axis}", "ring" if wrap else "line", size)
                for axis, size, wrap in zip("xyzuvw", sizes, wrapped, strict=False)
            ]
        kinds: dict[str, LevelKind] = {
            "switch": "switch",
            "full_mesh": "full_mesh",
            "cube_mesh": "cube_mesh",
            "ring": "ring",
            "line": "line",
        }
        level = self._level(self.name, kinds[self.kind], sizes[0])
        full = self.shape.size or 1
        if self.kind == "full_mesh" and 1 < level.size < full:
            # A chip keeps only its links to the peers that take part.
            share = (level.size - 1) / (full - 1)
            return [
                level.model_copy(
                    update={
                        "bytes_per_s_per_chip_per_dir": share * level.bytes_per_s_per_chip_per_dir
                    }
                )
            ]
        if self.kind == "ring" and level.size < full:
            return [level.model_copy(update={"kind": "line"})]
        return [level]

    def _level(self, name: str, kind: LevelKind, size: int) -> Level:
        return Level(
            name=name,
            kind=kind,
            size=size,
            bytes_per_s_per_chip_per_dir=self.rate.value,
            oversubscription=self.oversubscription,
            in_network_reduction=self.in_network_reduction and kind == "switch",
            technology=self.technology,
            **{field: number.value for field, number in self.link.items()},
        )


def read_levels(
    sections: Sequence[Section],
    *,
    chip: Chip,
    chips_per_node: int,
    inner: Sequence[LevelSpec] = (),
    below: LevelSpec | None = None,
) -> list[LevelSpec]:
    """The levels of a file, innermost first.

    Args:
        sections: One mapping a level.
        chip: Gives the rate of the innermost level where the file does not.
        chips_per_node: Devices of a host, which share its network cards.
        inner: Levels of the node below the first of these.
        below: What these refine: gives rate, technology and what the link is like to levels that
            state none of their own.

    Raises:
        ConfigError: A level that is wrong, or a level without size that is not the outermost.
    """
    specs: list[LevelSpec] = []
    for index, section in enumerate(sections):
        innermost = not inner and index == 0
        refined = specs[-1] if specs and below is not None else below
        spec = _read_level(section, chip, chips_per_node, innermost, refined)
        if any(spec.name == other.name for other in (*inner, *specs)):
            section.refuse("name", f"a second level named {spec.name!r}", value=spec.name)
        if spec.shape.size is None and index < len(sections) - 1:
            section.refuse(None, "missing size: only the outermost level grows with the job")
        specs.append(spec)
    return specs


def _read_level(
    section: Section,
    chip: Chip,
    chips_per_node: int,
    innermost: bool,
    below: LevelSpec | None,
) -> LevelSpec:
    section.only(KEYS, REQUIRED)
    name = section.text("name")
    kind = section.choice("kind", KINDS, "switch")
    if not innermost and kind == "torus":
        section.refuse("kind", "a torus is the innermost level", value=kind)
    fallback = "other-scaleup" if innermost else "other-scaleout"
    technology = rules.technology(
        section, "technology", fallback if below is None else below.technology
    )
    link = dict(technology.numbers)
    if below is not None and "technology" not in section:
        link = dict(below.link)
    stated = {
        "latency_s": section.quantity("latency", "s", zero=True),
        "efficiency": section.ratio("efficiency", minimum=0.01, maximum=1.0),
    }
    link |= {field: number for field, number in stated.items() if number is not None}
    axes = 0
    if kind == "torus":
        axes = section.integer("axes", 3, maximum=6)
    elif "axes" in section:
        section.refuse("axes", "only a torus has axes")
    size = section.integer("size", maximum=10**6) if "size" in section else None
    rate = _rate(section, kind, axes, chip, chips_per_node, innermost)
    if rate is None and below is not None:
        rate = below.rate
    if rate is None:
        section.refuse(None, "missing rate", allowed=_rate_keys(kind))
    return LevelSpec(
        name=name,
        kind=kind,
        shape=Shape(size, axes, section.integer("unit", 1, maximum=64)),
        technology=technology.name,
        rate=rate,
        link=link,
        oversubscription=section.number("oversubscription", 1.0, minimum=1.0, maximum=1000.0),
        in_network_reduction=section.flag(
            "in_network_reduction", technology.in_network_reduction and kind == "switch"
        ),
    )


def _rate(
    section: Section, kind: str, axes: int, chip: Chip, chips_per_node: int, innermost: bool
) -> Sourced | None:
    """One chip's share, from whichever keys state it; None where none does."""
    allowed = _rate_keys(kind)
    for key in ("rate", "link_rate", "nics_per_node", "nic_rate"):
        if key in section and key not in allowed:
            section.refuse(key, f"a level of kind {kind} states {' and '.join(allowed)}")
    if kind in ONE_LINK:
        stated = section.quantity("link_rate", "bytes_per_s")
    else:
        stated = section.quantity("rate", "bytes_per_s")
        cards = section.quantity("nic_rate", "bytes_per_s")
        if (cards is None) != ("nics_per_node" not in section):
            section.refuse(None, "nics_per_node and nic_rate go together")
        if cards is not None:
            if stated is not None:
                section.refuse("rate", "states again what nics_per_node and nic_rate give")
            share = section.integer("nics_per_node", maximum=1000) / chips_per_node
            stated = replace(cards, value=cards.value * share)
    if stated is not None or not innermost:
        return stated
    own = chip.facts.get("scaleup_bytes_per_s_per_dir")
    if own is None:
        return None
    links = 2 * axes if kind == "torus" else 2 if kind in ONE_LINK else 1
    return replace(own, value=own.value / links, low=None, high=None)


def _rate_keys(kind: str) -> tuple[str, ...]:
    return ("link_rate",) if kind in ONE_LINK else ("rate", "nics_per_node", "nic_rate")
