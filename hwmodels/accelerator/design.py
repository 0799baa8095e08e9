"""Systolic designs as columns, and what follows from them without any uncertain constant.

A design is cores x (arrays of R x C cells, vector lanes, special-function units, scratchpad),
memory stacks and links, on one or more equal dies. Shape: H designs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hwmodels.table import FloatArray

if TYPE_CHECKING:
    from hwmodels.accelerator.template import Systolic

NODES_NM = (16, 12, 10, 7, 6, 5, 4, 3)
MEMORIES = ("hbm2", "hbm2e", "hbm3", "hbm3e", "hbm4")
PRECISIONS = ("bf16", "fp8")
FLOP_PER_FMA = 2.0
FP8_PACKED = 2.0


@dataclass(frozen=True, slots=True)
class DesignColumns:
    """H designs. Every field is (H,); numbers are floats, SI, unless the name says otherwise.

    Args:
        node_nm: One of `NODES_NM`.
        clock_hz: Clock of the arrays and the vector units.
        cores: Working cores of the package; `spare_cores` more are made for harvesting.
        spare_cores: Cores that may be defective.
        arrays_per_core: Matrix units of a core.
        rows: R, cells of an array along the sum.
        cols: C, cells of an array along the result.
        lanes_per_core: fp32 multiply-add lanes of a core.
        register_bytes_per_lane: Register file behind a lane.
        special_per_cycle_per_core: Special functions (exponential, reciprocal) a core and cycle.
        scratchpad_bytes_per_core: Software-managed memory of a core.
        fp8: Whether the cells make two fp8 products a cycle.
        memory: Index into `MEMORIES`.
        memory_stacks: Stacks of the package.
        memory_bytes_per_stack: Capacity used of a stack.
        memory_bytes_per_s_per_stack: Rate of a stack.
        scaleup_bytes_per_s_per_dir: Links to peers of the domain, one direction.
        nic_bytes_per_s_per_dir: Link to the network card, one direction.
        dies: Equal compute dies of the package.
    """

    node_nm: FloatArray
    clock_hz: FloatArray
    cores: FloatArray
    spare_cores: FloatArray
    arrays_per_core: FloatArray
    rows: FloatArray
    cols: FloatArray
    lanes_per_core: FloatArray
    register_bytes_per_lane: FloatArray
    special_per_cycle_per_core: FloatArray
    scratchpad_bytes_per_core: FloatArray
    fp8: NDArray[np.bool_]
    memory: NDArray[np.int64]
    memory_stacks: FloatArray
    memory_bytes_per_stack: FloatArray
    memory_bytes_per_s_per_stack: FloatArray
    scaleup_bytes_per_s_per_dir: FloatArray
    nic_bytes_per_s_per_dir: FloatArray
    dies: FloatArray

    def __len__(self) -> int:
        return len(self.node_nm)

    @classmethod
    def of(cls, designs: Iterable[Systolic]) -> DesignColumns:
        """One row a template."""
        rows = [design.numbers() for design in designs]
        return cls(
            **{
                field.name: np.array([row[field.name] for row in rows], dtype=_dtype(field.name))
                for field in fields(cls)
            }
        )

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_] | slice) -> DesignColumns:
        """Some of the rows."""
        return DesignColumns(
            **{field.name: getattr(self, field.name)[index] for field in fields(self)}
        )

    def made(self) -> DesignColumns:
        """The same designs with their spare cores counted as cores: what is on the die."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        columns["cores"] = self.cores + self.spare_cores
        columns["spare_cores"] = np.zeros_like(self.spare_cores)
        return DesignColumns(**columns)

    @property
    def node_index(self) -> NDArray[np.int64]:
        """(H,) index of the node in `NODES_NM`; a node that is not there counts as the nearest."""
        distance = np.abs(self.node_nm[:, None] - np.asarray(NODES_NM, dtype=float))
        index: NDArray[np.int64] = np.argmin(distance, axis=1)
        return index

    @property
    def arrays(self) -> FloatArray:
        """(H,) matrix units of the package."""
        return self.cores * self.arrays_per_core

    @property
    def macs(self) -> FloatArray:
        """(H,) cells of all arrays."""
        return self.arrays * self.rows * self.cols

    @property
    def lanes(self) -> FloatArray:
        """(H,) vector lanes of the package."""
        return self.cores * self.lanes_per_core

    @property
    def specials_per_cycle(self) -> FloatArray:
        """(H,) special functions a cycle."""
        return self.cores * self.special_per_cycle_per_core

    @property
    def scratchpad_bytes(self) -> FloatArray:
        """(H,) scratchpad of all cores."""
        return self.cores * self.scratchpad_bytes_per_core

    @property
    def register_bytes(self) -> FloatArray:
        """(H,) register files of all lanes."""
        return self.lanes * self.register_bytes_per_lane

    @property
    def peak_bf16_flop_per_s(self) -> FloatArray:
        """(H,) dense bf16 peak."""
        return FLOP_PER_FMA * self.macs * self.clock_hz

    @property
    def vector_flop_per_s(self) -> FloatArray:
        """(H,) fp32 peak of the vector lanes."""
        return FLOP_PER_FMA * self.lanes * self.clock_hz

    @property
    def memory_bytes(self) -> FloatArray:
        """(H,) capacity of the package."""
        return self.memory_stacks * self.memory_bytes_per_stack

    @property
    def memory_bytes_per_s(self) -> FloatArray:
        """(H,) memory rate of the package."""
        return self.memory_stacks * self.memory_bytes_per_s_per_stack

    @property
    def die_to_die_bytes_per_s(self) -> FloatArray:
        """(H,) traffic over die edges: what each die reads of the stacks that others own."""
        return self.memory_bytes_per_s * (self.dies - 1.0)

    @property
    def array_bytes_per_s(self) -> FloatArray:
        """(H,) scratchpad traffic of busy arrays: a row of operands in, a row of fp32 sums in and
        out."""
        per_cycle = self.arrays * (2.0 * self.rows + 8.0 * self.cols)
        return per_cycle * self.clock_hz


def _dtype(name: str) -> type:
    if name == "fp8":
        return bool
    return np.int64 if name == "memory" else float
