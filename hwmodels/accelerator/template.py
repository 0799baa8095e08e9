"""The template of a candidate chip: the free parameters, checked against physics at the door."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator

from hwmodels.accelerator.design import MEMORIES, NODES_NM, PRECISIONS, DesignColumns
from hwmodels.accelerator.priors import load_priors
from hwmodels.errors import ConfigError, UnsupportedError
from hwmodels.sourced import PROVENANCE_KEYS, Section, load_document

GIGA = 1e9
KIND = "accelerator"
MAX_CELLS = 1024
_AT_LEAST_ONE = (
    "cores",
    "arrays_per_core",
    "rows",
    "cols",
    "lanes_per_core",
    "memory_stacks",
    "dies",
)
_POSITIVE = (
    "clock_hz",
    "special_per_cycle_per_core",
    "scaleup_bytes_per_s_per_dir",
    "nic_bytes_per_s_per_dir",
    "register_bytes_per_lane",
)
KEYS = {
    "clock": ("clock_hz", "hz"),
    "register_per_lane": ("register_bytes_per_lane", "bytes"),
    "scratchpad_per_core": ("scratchpad_bytes_per_core", "bytes"),
    "memory_per_stack": ("memory_bytes_per_stack", "bytes"),
    "memory_rate_per_stack": ("memory_bytes_per_s_per_stack", "bytes_per_s"),
    "scaleup": ("scaleup_bytes_per_s_per_dir", "bytes_per_s"),
    "nic": ("nic_bytes_per_s_per_dir", "bytes_per_s"),
}
"""Key of a design file to its field and dimension."""
WHOLE = (
    "node_nm",
    "cores",
    "spare_cores",
    "arrays_per_core",
    "rows",
    "cols",
    "lanes_per_core",
    "memory_stacks",
    "dies",
)
_OPTIONAL = (
    "name",
    "spare_cores",
    "register_per_lane",
    "precision",
    "memory_per_stack",
    "memory_rate_per_stack",
    "dies",
)


class Systolic(BaseModel):
    """A chip of cores with systolic arrays, vector lanes and a scratchpad, SI units.

    Fields as in `DesignColumns`. A precision of `fp8` means bf16 as well, with two fp8 products a
    cell and cycle. A stack without capacity or rate gets the most that its generation offers.

    Raises:
        ConfigError: A field is outside what can be built, with the limit and the amount over it.
        UnsupportedError: Unknown node, memory or precision.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "systolic"
    node_nm: int
    clock_hz: float
    cores: int
    spare_cores: int = 0
    arrays_per_core: int
    rows: int
    cols: int
    lanes_per_core: int
    register_bytes_per_lane: float = 256.0
    special_per_cycle_per_core: float
    scratchpad_bytes_per_core: float
    precision: str = "bf16"
    memory: str
    memory_stacks: int
    memory_bytes_per_stack: float | None = None
    memory_bytes_per_s_per_stack: float | None = None
    scaleup_bytes_per_s_per_dir: float
    nic_bytes_per_s_per_dir: float
    dies: int = 1

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_names()
        self._check_numbers()
        # Limits read the silicon model, which this module need not load to describe a design.
        from hwmodels.accelerator.limits import violations

        for limit, found in violations(DesignColumns.of([self])).items():
            excess = float(found.excess[0])
            if excess > 0:
                needed, allowed = float(found.needed[0]), float(found.allowed[0])
                raise ConfigError(
                    f"{self.name}: {limit} is {needed:.4g} {found.unit}, "
                    f"{excess:.3g} {found.unit} over the limit",
                    field=found.field,
                    value=needed,
                    allowed=f"up to {allowed:.4g} {found.unit}",
                )
        return self

    def _check_names(self) -> None:
        for field, value, known in (
            ("node_nm", self.node_nm, NODES_NM),
            ("memory", self.memory, MEMORIES),
            ("precision", self.precision, PRECISIONS),
        ):
            if value not in known:
                raise UnsupportedError(
                    f"{self.name}: unknown {field} {value!r}",
                    field=field,
                    value=value,
                    allowed=known,
                )

    def _check_numbers(self) -> None:
        for field in _AT_LEAST_ONE:
            if getattr(self, field) < 1:
                self._refuse(field, "at least 1")
        for field in _POSITIVE:
            if not 0.0 < getattr(self, field) < float("inf"):
                self._refuse(field, "more than 0")
        for field in ("memory_bytes_per_stack", "memory_bytes_per_s_per_stack"):
            if getattr(self, field) is not None and not getattr(self, field) > 0:
                self._refuse(field, "more than 0")
        if self.spare_cores < 0:
            self._refuse("spare_cores", "0 or more")
        for field in ("rows", "cols"):
            if getattr(self, field) > MAX_CELLS:
                self._refuse(field, f"up to {MAX_CELLS}")
        least = load_priors().limit("scratchpad", "bytes")
        if not self.scratchpad_bytes_per_core >= least:
            self._refuse("scratchpad_bytes_per_core", f"{least:.0f} bytes or more")
        for field in ("cores", "spare_cores", "memory_stacks"):
            if getattr(self, field) % self.dies:
                self._refuse(field, f"a multiple of the {self.dies} dies")

    def _refuse(self, field: str, allowed: str) -> None:
        value = getattr(self, field)
        raise ConfigError(
            f"{self.name}: {field} is {value}", field=field, value=value, allowed=allowed
        )

    def numbers(self) -> dict[str, float]:
        """The fields of `DesignColumns`, by name."""
        kind = MEMORIES.index(self.memory)
        table = load_priors().by_memory
        full_bytes = table["capacity"][kind].median * GIGA
        full_bytes_per_s = table["rate"][kind].median * GIGA
        row = self.model_dump(exclude={"name", "precision", "memory"})
        return row | {
            "fp8": self.precision == "fp8",
            "memory": kind,
            "memory_bytes_per_stack": self.memory_bytes_per_stack or full_bytes,
            "memory_bytes_per_s_per_stack": self.memory_bytes_per_s_per_stack or full_bytes_per_s,
        }


def load_template(path: str | Path) -> Systolic:
    """A design from a YAML file of `kind: accelerator`.

    Raises:
        ConfigError: As `read_template`, or not such a file.
    """
    return read_template(load_document(path, kinds=(KIND,)))


def read_template(section: Section) -> Systolic:
    """A design from an open file; quantities carry their units.

    Raises:
        ConfigError: Unknown or missing keys, values without units, or a design outside physics.
    """
    fields = read_fields(section)
    try:
        return Systolic.model_validate(fields)
    except ConfigError as error:
        error.file, error.line = section.file, section.line_of()
        raise


def read_fields(section: Section) -> dict[str, Any]:
    """The fields of `Systolic` that a file states, not yet checked against physics."""
    names = ("name", "precision", "memory")
    keys = (*names, *WHOLE, "special_per_cycle_per_core", *KEYS)
    section.only(
        (*keys, "kind", *PROVENANCE_KEYS), required=[key for key in keys if key not in _OPTIONAL]
    )
    fields: dict[str, Any] = {key: section.text(key) for key in names if key in section}
    for key in WHOLE:
        if key in section:
            fields[key] = section.integer(key, minimum=0)
    fields["special_per_cycle_per_core"] = section.number("special_per_cycle_per_core")
    for key, (field, dimension) in KEYS.items():
        fact = section.quantity(key, dimension)
        if fact is not None:
            fields[field] = fact.value
    return fields
