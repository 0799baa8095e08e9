"""A parallel plan, and many plans as columns.

`Plan` is the door: one validated plan with the field names of the field (Megatron's where
Megatron has one). `PlanTable` is the corridor: P plans as small integer codes into the distinct
values of each axis, so that a cost that depends on a few axes is computed once a distinct
combination (`dse/keys.py`) and gathered. No object per plan is ever made on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hwmodels.errors import ConfigError

IntArray = NDArray[np.int64]
CodeArray = NDArray[np.uint16]

RECOMPUTE = ("none", "selective", "full")
SCHEDULES = ("1f1b", "interleaved", "gpipe")
OPTIMIZERS = ("adam", "adam-bf16", "adam-8bit", "sgd-momentum")
GRAD_DTYPES = ("fp32", "bf16", "fp16")
MASTER_DTYPES = ("fp32", "none")

MESH_ORDERS = (
    "tp-cp-dp-pp",
    "tp-cp-pp-dp",
    "tp-dp-cp-pp",
    "tp-dp-pp-cp",
    "tp-pp-cp-dp",
    "tp-pp-dp-cp",
)
"""Rank orders, fastest first. tp is always fastest: its messages are the largest and the most
frequent.
"""

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "recompute": RECOMPUTE,
    "schedule": SCHEDULES,
    "mesh_order": MESH_ORDERS,
    "optimizer": OPTIMIZERS,
    "grad_dtype": GRAD_DTYPES,
    "master_dtype": MASTER_DTYPES,
}
"""Axes whose values are words; a column holds the position of the word."""

DEGREES = ("tp", "pp", "dp", "cp", "ep", "etp", "vpp")
AXES = (
    *DEGREES,
    "micro_batch_size",
    "global_batch_size",
    "sequence_parallel",
    "zero",
    "recompute",
    "schedule",
    "mesh_order",
    "optimizer",
    "grad_dtype",
    "master_dtype",
    "first_stage_layers",
    "last_stage_layers",
)
"""Every axis of a plan, in the canonical order that breaks ties."""


class Plan(BaseModel):
    """One parallel plan. A field left at None is derived when the chip count is known.

    `dp` defaults to chips / (tp·pp·cp), `sequence_parallel` to tp > 1, `schedule` to 1f1b, or
    interleaved where vpp > 1. `first_stage_layers` and `last_stage_layers` (0: even) give the
    ends of the pipeline fewer or more layers; the stages between share the rest evenly.
    `global_batch_size` and `micro_batch_size` count sequences.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tp: int = Field(default=1, ge=1)
    pp: int = Field(default=1, ge=1)
    dp: int | None = Field(default=None, ge=1)
    cp: int = Field(default=1, ge=1)
    ep: int = Field(default=1, ge=1)
    etp: int = Field(default=1, ge=1)
    vpp: int = Field(default=1, ge=1)
    micro_batch_size: int = Field(default=1, ge=1)
    global_batch_size: int = Field(ge=1)
    sequence_parallel: bool | None = None
    zero: Literal[0, 1, 2, 3] = 1
    recompute: Literal["none", "selective", "full"] = "none"
    schedule: Literal["1f1b", "interleaved", "gpipe"] | None = None
    mesh_order: Literal[
        "tp-cp-dp-pp", "tp-cp-pp-dp", "tp-dp-cp-pp", "tp-dp-pp-cp", "tp-pp-cp-dp", "tp-pp-dp-cp"
    ] = "tp-cp-dp-pp"
    optimizer: Literal["adam", "adam-bf16", "adam-8bit", "sgd-momentum"] = "adam"
    grad_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    master_dtype: Literal["fp32", "none"] = "fp32"
    first_stage_layers: int = Field(default=0, ge=0)
    last_stage_layers: int = Field(default=0, ge=0)

    def __init__(self, **fields: object) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as problem:
            raise plan_field_error(problem) from None

    def resolved(self, num_chips: int) -> Plan:
        """The same plan with every field filled in for `num_chips` devices.

        Raises:
            ConfigError: tp·pp·cp does not divide the chip count.
        """
        used = self.tp * self.pp * self.cp
        if self.dp is None and num_chips % used:
            raise ConfigError(
                f"tp·pp·cp = {self.tp}·{self.pp}·{self.cp} = {used} does not divide "
                f"{num_chips} chips",
                field="dp",
                value=used,
                allowed=f"degrees whose product divides {num_chips}",
            )
        sequence_parallel = self.sequence_parallel
        return self.model_copy(
            update={
                "dp": self.dp if self.dp is not None else num_chips // used,
                "sequence_parallel": self.tp > 1
                if sequence_parallel is None
                else sequence_parallel,
                "schedule": self.schedule or ("interleaved" if self.vpp > 1 else "1f1b"),
            }
        )


def plan_field_error(problem: ValidationError) -> ConfigError:
    """The first failure of a plan's validation as one clear error."""
    first = problem.errors()[0]
    field = str(first["loc"][0]) if first["loc"] else "plan"
    if first["type"] == "extra_forbidden":
        from difflib import get_close_matches

        near = get_close_matches(field, Plan.model_fields, n=1)
        return ConfigError(
            f"a plan has no field {field!r}",
            field=field,
            value=first["input"],
            allowed=list(Plan.model_fields),
            hint=f"did you mean {near[0]!r}?" if near else None,
        )
    allowed: object = OPTIONS.get(field)
    if allowed is None:
        allowed = {
            "zero": (0, 1, 2, 3),
            "sequence_parallel": ("true", "false"),
            "first_stage_layers": "an integer from 0",
            "last_stage_layers": "an integer from 0",
        }.get(field, "an integer from 1")
    if first["type"] == "missing":
        return ConfigError(f"a plan needs {field}", field=field, allowed=allowed)
    return ConfigError(
        f"{field} = {first['input']!r} is not allowed",
        field=field,
        value=first["input"],
        allowed=allowed,
    )


@dataclass(frozen=True, slots=True)
class PlanTable:
    """P plans as columns of codes.

    Args:
        values: Axis to its distinct values as integers, ascending; word axes hold positions in
            `OPTIONS`, `sequence_parallel` 0 or 1. Chunks of one enumeration share this very
            object.
        codes: Axis to (P,) positions in `values[axis]`.
    """

    values: Mapping[str, IntArray]
    codes: Mapping[str, CodeArray]

    def __len__(self) -> int:
        return len(self.codes["tp"])

    def column(self, axis: str) -> IntArray:
        """(P,) integers of one axis."""
        values = self.values[axis]
        if len(values) == 1:
            return np.broadcast_to(values, (len(self),))
        return values[self.codes[axis]]

    def columns(self) -> dict[str, IntArray]:
        """Every axis as (P,) integers."""
        return {axis: self.column(axis) for axis in AXES}

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> PlanTable:
        """The rows that `index` (positions or a mask) selects."""
        return PlanTable(self.values, {axis: codes[index] for axis, codes in self.codes.items()})

    def plan(self, row: int) -> Plan:
        """Row `row` as a resolved `Plan`."""
        fields: dict[str, object] = {}
        for axis in AXES:
            value = int(self.values[axis][self.codes[axis][row]])
            fields[axis] = OPTIONS[axis][value] if axis in OPTIONS else value
        fields["sequence_parallel"] = bool(fields["sequence_parallel"])
        return Plan(**fields)

    @classmethod
    def from_columns(cls, columns: Mapping[str, NDArray[np.integer]]) -> PlanTable:
        """A table from one integer array an axis (word axes as positions), all of one length."""
        values: dict[str, IntArray] = {}
        codes: dict[str, CodeArray] = {}
        for axis in AXES:
            distinct, inverse = np.unique(np.asarray(columns[axis]), return_inverse=True)
            values[axis] = distinct.astype(np.int64)
            codes[axis] = inverse.astype(np.uint16)
        return cls(values, codes)

    @classmethod
    def from_plans(cls, plans: Sequence[Plan]) -> PlanTable:
        """A table of resolved plans."""
        rows = [plan_row(plan) for plan in plans]
        return cls.from_columns(
            {axis: np.array([row[axis] for row in rows], dtype=np.int64) for axis in AXES}
        )


def plan_row(plan: Plan) -> dict[str, int]:
    """A resolved plan as one integer an axis."""
    row: dict[str, int] = {}
    for axis in AXES:
        value = getattr(plan, axis)
        if value is None:
            raise ConfigError(
                f"{axis} is not filled in: call Plan.resolved(num_chips) first", field=axis
            )
        row[axis] = OPTIONS[axis].index(value) if axis in OPTIONS else int(value)
    return row
