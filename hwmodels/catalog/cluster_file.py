"""Node and cluster files as a `Cluster` of a given number of chips.

A node file states one host or scale-up domain and the network that joins its copies; the outermost
level grows with the job. A cluster file either refines a node (`node:` and `outer_levels:` that
replace what lies beyond the node) or states chip and levels itself. A chip file alone is taken as
scale-up domains of `scaleup_size` chips, joined by its scale-out links.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from hwmodels.catalog import names, rules, sizing
from hwmodels.catalog.chip_file import MAX_SCALEUP, load_chip, read_chip
from hwmodels.catalog.level_file import LevelSpec, read_levels
from hwmodels.chip import Chip
from hwmodels.errors import ConfigError
from hwmodels.network import Cluster, Level
from hwmodels.sourced import Section, Sourced, load_document

HOST_QUANTITIES = {
    "host_memory": ("host_memory_bytes_per_node", "bytes"),
    "power": ("node_power_w", "w"),
    "price": ("node_price_usd", "usd"),
}
"""Key of a node file to its field of `Cluster` and its dimension."""

_COMMON = ("kind", "name", "source", "date", "status", "notes", *HOST_QUANTITIES)
_BODY = ("chip", "chips_per_node", "levels")
NODE_KEYS = (*_COMMON, *_BODY)
NODE_REQUIRED = ("kind", "name", *_BODY)
CLUSTER_KEYS = (*NODE_KEYS, "node", "outer_levels", "chips", "topology")
CLUSTER_REQUIRED = ("kind", "name")
MAX_CHIPS = 10**7
_TOPOLOGY = re.compile(r"[0-9]{1,4}(?:x[0-9]{1,4}){0,5}")


@dataclass(frozen=True)
class Blueprint:
    """A cluster before the number of chips is known.

    Args:
        name: Its name.
        chip: The chip.
        chips_per_node: Devices of a host.
        specs: Levels, innermost first.
        default_chips: Devices where the caller names no number.
        topology: Axes of its torus, if fixed by the file.
        facts: Provenance of what is not a level's.
        notes: Remarks of the file.
    """

    name: str
    chip: Chip
    chips_per_node: int
    specs: tuple[LevelSpec, ...]
    default_chips: int
    topology: tuple[int, ...] | None
    facts: Mapping[str, Sourced]
    notes: tuple[str, ...]

    def sized(self, num_chips: int | None, topology: tuple[int, ...] | None) -> Cluster:
        """The cluster of a number of chips.

        Raises:
            ConfigError: The count does not fill whole units; with the nearest that do.
        """
        count = self._count(num_chips, topology)
        dims = topology or self.topology
        shapes = [spec.shape for spec in self.specs]
        sizes = sizing.split(shapes, count, self.chips_per_node, dims)
        if sizes is None:
            if dims is not None:
                allowed: object = f"multiples of {prod(dims)} within its pods"
            else:
                allowed = sizing.nearest(shapes, count, self.chips_per_node)
            raise ConfigError(
                f"{count} chips do not fill whole units of {self.name}",
                field="chips",
                value=count,
                allowed=allowed,
            )
        levels: list[Level] = []
        facts = dict(self.facts)
        for spec, size in zip(self.specs, sizes, strict=True):
            levels += spec.sized(size)
            facts |= spec.facts()
        host = {n: fact.value for n, fact in facts.items() if not n.startswith("levels.")}
        return Cluster(
            name=self.name,
            chip=self.chip,
            levels=tuple(levels),
            chips_per_node=min(self.chips_per_node, count),
            host_memory_bytes_per_node=host.get("host_memory_bytes_per_node"),
            node_power_w=host.get("node_power_w"),
            node_price_usd=host.get("node_price_usd"),
            estimated=tuple(sorted(n for n, f in facts.items() if f.status == "estimated")),
            facts=facts,
            notes=self.notes,
        )

    def _count(self, num_chips: object, topology: tuple[int, ...] | None) -> int:
        if topology is not None:
            self._check_topology(topology)
        if num_chips is None:
            return prod(topology) if topology else self.default_chips
        if isinstance(num_chips, bool) or not isinstance(num_chips, int):
            raise ConfigError("chips is not a whole number", field="chips", value=num_chips)
        if not 1 <= num_chips <= MAX_CHIPS:
            raise ConfigError(
                f"{num_chips} chips", field="chips", value=num_chips, allowed=f"1..{MAX_CHIPS}"
            )
        return num_chips

    def _check_topology(self, topology: tuple[int, ...]) -> None:
        axes = self.specs[0].shape.axes
        if len(topology) != axes:
            shape = "x".join(map(str, topology))
            needs = f"{axes} axes" if axes else "no torus"
            raise ConfigError(
                f"topology {shape} does not fit {self.name}, which has {needs}",
                field="topology",
                value=shape,
            )


def load_cluster(
    name_or_path: str | Path, num_chips: int | None = None, *, topology: str | None = None
) -> Cluster:
    """A cluster of the catalogue by name or alias, or of your own by the path of its file.

    Args:
        name_or_path: Such as `dgx-h100`, `nvl72`, `tpuv4-pod`, `mine.yaml` (node, cluster or
        chip). num_chips: Devices of the job; one scale-up domain where None. topology: Axes of a
        torus slice, such as `4x4x8`, instead of the rule's.

    Raises:
        ConfigError: Unknown or ambiguous name, a wrong file, or a count that does not fit.
    """
    path = Path(name_or_path)
    if not names.is_path(name_or_path):
        path = names.find("nodes", str(name_or_path), what="node or cluster", field="cluster")
    blueprint = read_blueprint(load_document(path, kinds=("cluster", "node", "chip")))
    dims = None if topology is None else _axes(topology)
    if topology is not None and dims is None:
        raise ConfigError(
            f"{topology[:40]!r} is not a topology", field="topology", allowed="such as 4x4x8"
        )
    return blueprint.sized(num_chips, dims)


def read_blueprint(section: Section) -> Blueprint:
    """The cluster of an open file, of any size."""
    kind = section.text("kind")
    if kind == "chip":
        return _of_chip(section)
    if kind == "node":
        section.only(NODE_KEYS, NODE_REQUIRED)
        return _of_node(section)
    section.only(CLUSTER_KEYS, CLUSTER_REQUIRED)
    return _of_cluster(section)


def _of_node(section: Section) -> Blueprint:
    chip = _chip_of(section)
    chips_per_node = section.integer("chips_per_node", maximum=10_000)
    specs = read_levels(section.sections("levels"), chip=chip, chips_per_node=chips_per_node)
    if not specs:
        section.refuse("levels", "is empty")
    return Blueprint(
        name=section.text("name"),
        chip=chip,
        chips_per_node=chips_per_node,
        specs=tuple(specs),
        default_chips=_one_domain(specs[0]),
        topology=None,
        facts=_host_facts(section),
        notes=section.texts("notes"),
    )


def _of_cluster(section: Section) -> Blueprint:
    if "node" in section:
        for key in _BODY:
            if key in section:
                section.refuse(key, "belongs to the node file that node: names")
        base = read_blueprint(_referred(section, "node", "nodes", ("node",)))
    else:
        missing = [key for key in _BODY if key not in section]
        if missing:
            section.refuse(None, f"missing node, or {', '.join(missing)}")
        base = _of_node(section)
    specs = base.specs
    outer = section.sections("outer_levels")
    if outer:
        kept = [spec for spec in specs if spec.shape.size is not None]
        below = next((spec for spec in specs if spec.shape.size is None), None)
        specs = (
            *kept,
            *read_levels(
                outer,
                chip=base.chip,
                chips_per_node=base.chips_per_node,
                inner=kept,
                below=below,
            ),
        )
    dims = _axes(section.text("topology")) if "topology" in section else None
    if "topology" in section and dims is None:
        section.refuse("topology", "is not a topology", allowed="such as 4x4x8")
    count = prod(dims) if dims else base.default_chips
    blueprint = replace(
        base,
        name=section.text("name"),
        specs=specs,
        default_chips=section.integer("chips", count, maximum=MAX_CHIPS),
        topology=dims,
        facts={**base.facts, **_host_facts(section)},
        notes=(*section.texts("notes"), *base.notes) if "node" in section else base.notes,
    )
    if dims is not None:
        blueprint._check_topology(dims)
    return blueprint


def _of_chip(section: Section) -> Blueprint:
    chip = read_chip(section)
    up, out = (chip.facts.get(f"{link}_bytes_per_s_per_dir") for link in ("scaleup", "scaleout"))
    if up is None:
        section.refuse(
            None,
            "a chip without links.scaleup is no cluster",
            hint="state it, or write a node file",
        )
    facts: dict[str, Sourced] = {}
    if "scaleup_size" in section:
        size = section.integer("scaleup_size", maximum=MAX_SCALEUP)
    else:
        facts["scaleup_size"] = rules.estimate("scaleup_size")
        size = round(facts["scaleup_size"].value)
    inside = rules.technology(section, "scaleup_technology", "other-scaleup")
    specs = [_switch("scaleup", sizing.Shape(size), inside, up)]
    if out is not None:
        between = rules.technologies()["other-scaleout"]
        specs.append(_switch("scaleout", sizing.Shape(None), between, out))
    return Blueprint(chip.name, chip, size, tuple(specs), size, None, facts, chip.notes)


def _switch(
    name: str, shape: sizing.Shape, technology: rules.Technology, rate: Sourced
) -> LevelSpec:
    return LevelSpec(
        name=name,
        kind="switch",
        shape=shape,
        technology=technology.name,
        rate=rate,
        link=technology.numbers,
        in_network_reduction=technology.in_network_reduction,
    )


def _chip_of(section: Section) -> Chip:
    name = section.text("chip")
    if names.is_path(name):
        return load_chip(Path(section.file).parent / name)
    try:
        return load_chip(name)
    except ConfigError as error:
        section.refuse("chip", error.message, value=name, allowed=error.allowed, hint=error.hint)


def _referred(section: Section, key: str, folder: str, kinds: tuple[str, ...]) -> Section:
    """The file that a key of another file names, by catalogue name or relative path."""
    name = section.text(key)
    path = Path(section.file).parent / name
    if not names.is_path(name):
        try:
            path = names.find(folder, name, what=key, field=key)
        except ConfigError as error:
            section.refuse(key, error.message, value=name, allowed=error.allowed, hint=error.hint)
    return load_document(path, kinds)


def _host_facts(section: Section) -> dict[str, Sourced]:
    read = {f: section.quantity(key, dim) for key, (f, dim) in HOST_QUANTITIES.items()}
    return {name: fact for name, fact in read.items() if fact is not None}


def _one_domain(spec: LevelSpec) -> int:
    if spec.shape.axes:
        return int(max(2, spec.shape.unit) ** spec.shape.axes)
    return spec.shape.size or 1


def _axes(text: str) -> tuple[int, ...] | None:
    if not _TOPOLOGY.fullmatch(text):
        return None
    dims = tuple(int(edge) for edge in text.split("x"))
    return dims if all(dims) else None
