"""Designs of a study as columns: hardware rows, and what they cost.

The number of a design becomes template columns, network levels, area, TDP and price; nothing that
varies is free. All silicon costs of a study share one set of draws, so that designs compare draw
by draw.

Shapes: `H` designs, `S` draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from dse.stacks.levels import silicon_of
from hwmodels.accelerator.conditioning import conditioned
from hwmodels.accelerator.design import MEMORIES, DesignColumns
from hwmodels.accelerator.limits import violations
from hwmodels.accelerator.network_cost import Topology, clos_tiers, network_cost
from hwmodels.accelerator.priors import Constants, load_priors
from hwmodels.accelerator.silicon import Interval, evaluate_silicon
from hwmodels.accelerator.template import KEYS, WHOLE, Systolic
from hwmodels.accelerator.to_chip import to_chip, to_chip_columns
from hwmodels.catalog import load_chip
from hwmodels.catalog.rules import technologies
from hwmodels.catalog.sizing import torus
from hwmodels.chip import Chip
from hwmodels.errors import ConfigError
from hwmodels.network import Cluster, Level, LevelKind
from hwmodels.table import FloatArray, HardwareTable, IntArray
from search.catalogued import catalogued
from search.study_space import TEMPLATE, TORUS_AXES, StudySpace

SAMPLES = 128
GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Costs:
    """What H designs cost.

    Args:
        area_mm2: Compute dies of a package.
        tdp_w: A chip at its peak rates.
        price_usd: A chip as made.
        network_usd: The network's share of a chip, as bought.
        network_w: The network's share of a chip.
        draws: `area_mm2, tdp_w, price_usd, network_usd, network_w` to (S, H) joint draws.
        switched_share: (H,) share of the TDP that the matrix units and their operands switch.
    """

    area_mm2: Interval
    tdp_w: Interval
    price_usd: Interval
    network_usd: Interval
    network_w: Interval
    draws: Mapping[str, FloatArray]
    switched_share: FloatArray


@dataclass(frozen=True)
class Candidates:
    """H designs of a study.

    Args:
        space: The study's space.
        index: (H,) numbers of the designs.
        constants: S draws that all designs of the study share.
    """

    space: StudySpace
    index: IntArray
    constants: Constants

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def positions(self) -> IntArray:
        """(H, axes) positions."""
        return self.space.positions(self.index)

    def column(self, axis: str) -> FloatArray:
        """(H,) values of an axis; positions where they are words."""
        place = next(i for i, known in enumerate(self.space.axes) if known.name == axis)
        return self.space.axes[place].taken(self.positions[:, place])

    def words(self, axis: str) -> list[str]:
        """(H,) words of an axis."""
        known = self.space.axis(axis)
        return [str(known.values[int(place)]) for place in self.column(axis)]

    def has(self, axis: str) -> bool:
        """Whether the file states the axis."""
        return any(known.name == axis for known in self.space.axes)

    # The chip --------------------------------------------------------------------------------

    @cached_property
    def designs(self) -> DesignColumns:
        """The template's columns; of catalogued chips their known silicon, else refused."""
        if self.space.from_catalogue:
            raise ConfigError("catalogued chips have no template", field="chip")
        fields: dict[str, NDArray[np.generic]] = {}
        for key in (*WHOLE, "special_per_cycle_per_core"):
            fields[key] = self.column(key)
        for key, (field, _) in KEYS.items():
            if self.has(key):
                fields[field] = self.column(key)
        memory = np.array([MEMORIES.index(word) for word in self.words("memory")], dtype=np.int64)
        fields["memory"] = memory
        fields["fp8"] = np.array([word == "fp8" for word in self.words("precision")])
        for key, most in (("memory_per_stack", "capacity"), ("memory_rate_per_stack", "rate")):
            if not self.has(key):
                full = np.array([entry.median for entry in load_priors().by_memory[most]])
                fields[KEYS[key][0]] = full[memory] * GIGA
        return DesignColumns(**fields)  # type: ignore[arg-type]

    @cached_property
    def chips(self) -> tuple[Chip, ...]:
        """Every catalogued chip that the study names, in the axis's order."""
        return tuple(load_chip(str(name)) for name in self.space.axis("chip").values)

    @cached_property
    def chip_place(self) -> NDArray[np.int64]:
        """(H,) which catalogued chip each design takes."""
        return self.column("chip").astype(np.int64)

    @cached_property
    def chip_columns(self) -> dict[str, FloatArray]:
        """Chip columns of a hardware table, (H,) each."""
        if not self.space.from_catalogue:
            return to_chip_columns(self.designs)
        rows = [chip.columns() for chip in self.chips]
        shared = [name for name in rows[0] if all(name in row for row in rows)]
        return {
            name: np.array([row[name] for row in rows], dtype=float)[self.chip_place]
            for name in shared
        }

    # The network -----------------------------------------------------------------------------

    @cached_property
    def num_chips(self) -> IntArray:
        """(H,) chips."""
        return self.column("chips").astype(np.int64)

    @cached_property
    def domain(self) -> IntArray:
        """(H,) chips of a scale-up domain."""
        return np.minimum(self.column("scaleup_size").astype(np.int64), self.num_chips)

    @cached_property
    def torus_axes(self) -> IntArray:
        """(H,) axes of the scale-up torus; 0 for switches."""
        return np.array([TORUS_AXES[word] for word in self.words("topology")], dtype=np.int64)

    @cached_property
    def scaleup_bytes_per_s(self) -> FloatArray:
        """(H,) a chip's links within the domain, one direction."""
        if self.has("scaleup"):
            return self.column("scaleup")
        own = np.array([chip.scaleup_bytes_per_s_per_dir or 0.0 for chip in self.chips])
        return cast(FloatArray, own[self.chip_place])

    @cached_property
    def oversubscription(self) -> FloatArray:
        """(H,) of the scale-out network; 1 where a single switch joins all, which has no tier to
        save on."""
        tiers = clos_tiers(self.num_chips / self.space.rails, self.space.radix)
        return np.where(tiers > 1, self.column("oversubscription"), 1.0)

    @cached_property
    def level_sizes(self) -> list[tuple[int, ...] | None]:
        """Sizes of the levels of each design, innermost first; None where they do not divide."""
        cache: dict[tuple[int, int, int], tuple[int, ...] | None] = {}
        keys = zip(
            self.num_chips.tolist(), self.domain.tolist(), self.torus_axes.tolist(), strict=True
        )
        return [
            cache[key] if key in cache else cache.setdefault(key, _sizes(*key)) for key in keys
        ]

    def groups(self, keep: NDArray[np.bool_]) -> Iterator[IntArray]:
        """Rows that can stand in one hardware table under one stack: of one chip count, one set
        of levels and one silicon."""
        found: dict[tuple[int, tuple[str, ...], str], list[int]] = {}
        for row in np.flatnonzero(keep).tolist():
            if self.level_sizes[row] is None:
                continue
            key = (int(self.num_chips[row]), self.kinds(row), self.silicon(row))
            found.setdefault(key, []).append(row)
        for rows in found.values():
            yield np.array(rows, dtype=np.int64)

    def kinds(self, row: int) -> tuple[LevelKind, ...]:
        """Kinds of a design's levels, innermost first: a torus has a level an axis."""
        sizes = self.level_sizes[row]
        if sizes is None:
            raise ConfigError(f"design {self.index[row]}: its domains do not divide the chips")
        if not self.torus_axes[row]:
            return ("switch", "switch")
        # Two chips of an axis are joined by both of their links.
        inner: list[LevelKind] = ["ring"] * (len(sizes) - 1)
        return (*inner, "switch")

    def link_rates(self, rows: IntArray) -> FloatArray:
        """(H, 2) a chip's share of the inner levels and of the outer one, as `Level` counts it.

        A torus spreads a chip's rate over two links an axis, and a level counts one of them.
        """
        axes = self.torus_axes[rows]
        links = np.where(axes > 0, 2.0 * axes, 1.0)
        return np.stack([self.scaleup_bytes_per_s[rows] / links, self.column("nic")[rows]], axis=1)

    def hardware(self, rows: IntArray) -> HardwareTable:
        """The hardware rows of some designs of one shape."""
        table = HardwareTable.of([self.cluster(int(rows[0]))])
        inner = [0] * (len(table.level_kinds) - 1)
        level = {
            name: np.repeat(column, len(rows), axis=0) for name, column in table.level.items()
        }
        level["bytes_per_s"] = self.link_rates(rows)[:, [*inner, 1]]
        level["oversubscription"][:, -1] = self.oversubscription[rows]
        return replace(
            table,
            names=tuple(str(number) for number in self.index[rows]),
            chip={name: column[rows] for name, column in self.chip_columns.items()},
            level_size=np.array([self.level_sizes[row] for row in rows.tolist()], dtype=np.int64),
            level=level,
            chips_per_node=np.minimum(self.space.chips_per_host, self.domain[rows]),
        )

    # Costs -----------------------------------------------------------------------------------

    @cached_property
    def costs(self) -> Costs:
        """Area, power and price with their draws."""
        network_usd, network_w = self._network()
        if self.space.from_catalogue:
            area, tdp, price, switched = self._catalogued()
        else:
            # Draws are given, so that the generator is not used.
            silicon = evaluate_silicon(
                self.designs, rng=np.random.default_rng(0), constants=self.constants
            )
            area, tdp = silicon.area_draws_mm2, silicon.tdp_draws_w
            price = silicon.price_draws_usd
            parts = silicon.tdp_parts_w
            share = (parts["matrix"] + parts["matrix_operands"]) / sum(parts.values())
            switched = np.broadcast_to(share, (len(self),))
        draws = {
            "area_mm2": area,
            "tdp_w": tdp,
            "price_usd": price,
            "network_usd": network_usd,
            "network_w": network_w,
        }
        return Costs(
            **{name: Interval.of(values) for name, values in draws.items()},
            draws=draws,
            switched_share=switched,
        )

    def _network(self) -> tuple[FloatArray, FloatArray]:
        shape = (len(self.constants), len(self))
        usd, watts = np.empty(shape), np.empty(shape)
        for axes in sorted(set(TORUS_AXES.values())):
            rows = np.flatnonzero(self.torus_axes == axes)
            if not len(rows):
                continue
            kind: Topology = "torus" if axes else "switch"
            cost = network_cost(
                self.constants,
                num_chips=self.num_chips[rows],
                domain=self.domain[rows],
                scaleup_bytes_per_s_per_dir=self.scaleup_bytes_per_s[rows],
                nic_bytes_per_s_per_dir=self.column("nic")[rows],
                radix=self.space.radix,
                rails=self.space.rails,
                oversubscription=self.oversubscription[rows],
                scaleup=kind,
            )
            usd[:, rows] = cost.price_usd_per_chip
            watts[:, rows] = cost.power_w_per_chip
        return usd, watts

    def _catalogued(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Published area and TDP of catalogued chips and their price by the silicon model; links
        beyond the chip's own cost what they cost anywhere."""
        kinds = [catalogued(chip, self.constants) for chip in self.chips]
        area, tdp, price = (
            np.stack([getattr(kind, name) for kind in kinds], axis=1)[:, self.chip_place]
            for name in ("area_draws_mm2", "tdp_draws_w", "price_draws_usd")
        )
        switched = np.array([kind.switched_share for kind in kinds])[self.chip_place]
        own = np.array([chip.scaleup_bytes_per_s_per_dir or 0.0 for chip in self.chips])
        more = np.maximum(self.scaleup_bytes_per_s - own[self.chip_place], 0.0) / GIGA
        values = self.constants.values
        area = area + values["link_phy_area"][:, None] * more
        watts = values["link_energy"][:, None] * more * 8e-3
        return area, tdp + watts, price, switched

    def excess(self) -> dict[str, tuple[FloatArray, FloatArray, str]]:
        """Constraint to (H,) needed and (H,) allowed amounts, and their unit.

        Physics first, then the study's caps, each judged at the median.
        """
        found: dict[str, tuple[FloatArray, FloatArray, str]] = {}
        if not self.space.from_catalogue:
            for name, limit in violations(self.designs).items():
                found[name] = (limit.needed, limit.allowed, limit.unit)
            dies = self.designs.dies
            uneven = sum(
                np.minimum(getattr(self.designs, name) % dies, 1.0)
                for name in ("cores", "spare_cores", "memory_stacks")
            )
            found["equal dies"] = (np.asarray(uneven), np.zeros(len(self)), "uneven counts")
        broken = np.array([sizes is None for sizes in self.level_sizes], dtype=float)
        found["domains"] = (broken, np.zeros(len(self)), "chips that fill no domain")
        amounts = self.capped()
        for name, cap in self.space.caps.items():
            amount, unit = amounts[name]
            found[name] = (amount, np.full(len(self), cap), unit)
        return found

    def capped(self) -> dict[str, tuple[FloatArray, str]]:
        """Every amount that a cap may limit, (H,) at the median, with its unit."""
        costs, economics = self.costs, self.space.economics
        chip_usd = costs.price_usd.median
        return {
            "area": (costs.area_mm2.median, "mm2"),
            "tdp": (costs.tdp_w.median, "W"),
            "price": (chip_usd, "USD"),
            "capital": (
                self.num_chips * (economics.markup * chip_usd + costs.network_usd.median),
                "USD",
            ),
            "power": (self.num_chips * (costs.tdp_w.median + costs.network_w.median), "W"),
        }

    # One design ------------------------------------------------------------------------------

    def silicon(self, row: int) -> str:
        """The name that a stack's level knows a design's chip by."""
        if self.space.from_catalogue:
            return silicon_of(self.chips[int(self.chip_place[row])])
        return TEMPLATE

    def chip(self, row: int) -> Chip:
        """One design's chip."""
        if self.space.from_catalogue:
            return self.chips[int(self.chip_place[row])]
        return to_chip(self.template(row))

    def template(self, row: int) -> Systolic:
        """One design as a template; `excess` says what limits it breaks."""
        columns = self.designs
        fields = {
            name: getattr(columns, name)[row].item()
            for name in columns.__slots__
            if name not in ("fp8", "memory")
        }
        whole = {name: int(fields[name]) for name in WHOLE}
        return Systolic.model_construct(
            **fields
            | whole
            | {
                "name": f"design-{self.index[row]}",
                "memory": MEMORIES[int(columns.memory[row])],
                "precision": "fp8" if columns.fp8[row] else "bf16",
            }
        )

    def cluster(self, row: int) -> Cluster:
        """One design with its network, as a cluster."""
        kinds, sizes = self.kinds(row), self.level_sizes[row] or ()
        inner, outer = self.link_rates(np.array([row]))[0].tolist()
        levels = []
        for place, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
            is_outer = place == len(kinds) - 1
            link = technologies()[self.space.technologies[is_outer]]
            levels.append(
                Level(
                    name="scaleout" if is_outer else f"scaleup{place}" if place else "scaleup",
                    kind=kind,
                    size=size,
                    bytes_per_s_per_chip_per_dir=outer if is_outer else inner,
                    oversubscription=float(self.oversubscription[row]) if is_outer else 1.0,
                    in_network_reduction=link.in_network_reduction and kind == "switch",
                    technology=link.name,
                    **{field: number.value for field, number in link.numbers.items()},
                )
            )
        return Cluster(
            name=f"design-{self.index[row]}",
            chip=self.chip(row),
            levels=tuple(levels),
            chips_per_node=min(self.space.chips_per_host, int(self.domain[row])),
            estimated=tuple(f"levels.{level.name}.efficiency" for level in levels),
        )


def study_constants(seed: int, samples: int = SAMPLES) -> Constants:
    """The draws of the silicon constants that a study shares."""
    return conditioned(samples, np.random.default_rng(seed))


def _sizes(num_chips: int, domain: int, torus_axes: int) -> tuple[int, ...] | None:
    if num_chips % domain:
        return None
    outer = num_chips // domain
    if not torus_axes:
        return (domain, outer)
    dims = torus(domain, torus_axes, 1)
    return None if dims is None else (*dims, outer)
