"""The silicon model's constants: their priors, and draws from them.

`priors.yaml` holds each constant's median and central 80 % with node, year and source. A draw
follows a log-normal on either side of the median, with its own width. Shapes: S draws, N nodes, G
memory generations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from math import log
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from hwmodels.accelerator.design import MEMORIES, NODES_NM
from hwmodels.errors import ConfigError
from hwmodels.table import FloatArray

Z_90 = 1.2815515655446004
"""Standard deviations from the median to the 90 % quantile of a normal variable."""

MODEL_ERRORS = ("area_model_error", "power_model_error", "price_model_error")
"""Constants that stand for what the model leaves out, one draw for all designs of a call."""


class Prior(BaseModel):
    """One constant: its median and the central 80 % of what is plausible, in `unit`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    unit: str
    median: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)
    node_nm: int | None = None
    year: int
    status: Literal["published", "derived", "recalled"]
    source: tuple[str, ...] = Field(min_length=1)
    note: str = ""

    def at(self, z: FloatArray) -> FloatArray:
        """The value `z` standard deviations from the median in log space."""
        above, below = log(self.high / self.median), log(self.median / self.low)
        if above == below == 0.0:
            return np.full_like(z, self.median)
        return self.median * np.exp(z / Z_90 * np.where(z > 0, above, below))


class Limit(BaseModel):
    """A plain number of the model, in `unit`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    unit: str
    value: float = Field(gt=0)
    source: tuple[str, ...] = Field(min_length=1)
    note: str = ""


@dataclass(frozen=True)
class PriorTable:
    """All priors of one file.

    Args:
        constants: Name to prior.
        by_node: Name to one prior a node of `NODES_NM`.
        by_memory: Name to one prior a generation of `MEMORIES`.
        limits: Name to number.
        sources: Key to reference.
    """

    constants: Mapping[str, Prior]
    by_node: Mapping[str, tuple[Prior, ...]]
    by_memory: Mapping[str, tuple[Prior, ...]]
    limits: Mapping[str, Limit]
    sources: Mapping[str, str]

    def limit(self, name: str, unit: str) -> float:
        """A limit, which must be stated in `unit`."""
        entry = self.limits[name]
        _check_unit(name, entry.unit, unit)
        return entry.value


@dataclass(frozen=True)
class Constants:
    """S draws of every constant, jointly.

    Args:
        values: Constant to (S,).
        by_node: Name to (S, N).
        by_memory: Name to (S, G).
    """

    values: Mapping[str, FloatArray]
    by_node: Mapping[str, FloatArray]
    by_memory: Mapping[str, FloatArray]

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def take(self, index: NDArray[np.int64]) -> Constants:
        """Some of the draws."""
        return self._mapped(lambda values: values[index])

    def medians(self) -> Constants:
        """One draw: the median of each constant."""
        return self._medians

    @cached_property
    def _medians(self) -> Constants:
        return self._mapped(lambda values: np.median(values, axis=0, keepdims=True))

    def without_model_error(self) -> Constants:
        """The same draws with the errors of the model itself set to 1."""
        ones = {name: np.ones_like(self.values[name]) for name in MODEL_ERRORS}
        return Constants({**self.values, **ones}, self.by_node, self.by_memory)

    def _mapped(self, function: Any) -> Constants:
        return Constants(
            values={name: function(column) for name, column in self.values.items()},
            by_node={name: function(column) for name, column in self.by_node.items()},
            by_memory={name: function(column) for name, column in self.by_memory.items()},
        )


@lru_cache(maxsize=1)
def load_priors() -> PriorTable:
    """The priors that the package ships.

    Raises:
        ConfigError: A constant lacks a node, a generation, a known source, or an ordered range.
    """
    from ruamel.yaml import YAML

    text = files("hwmodels.accelerator").joinpath("priors.yaml").read_text(encoding="utf-8")
    raw = YAML(typ="safe", pure=True).load(text)
    table = PriorTable(
        constants={name: Prior(**entry) for name, entry in raw["constants"].items()},
        by_node={name: _listed(name, entry, NODES_NM) for name, entry in raw["nodes"].items()},
        by_memory={
            name: _listed(name, entry, MEMORIES) for name, entry in raw["memories"].items()
        },
        limits={name: Limit(**entry) for name, entry in raw["limits"].items()},
        sources=raw["sources"],
    )
    for name, prior in _all_priors(table):
        if not prior.low <= prior.median <= prior.high:
            raise ConfigError(f"{name}: the median lies outside low..high", field=name)
        unknown = [key for key in prior.source if key not in table.sources]
        if unknown:
            raise ConfigError(f"{name}: unknown source {unknown[0]!r}", field=name)
    return table


def sample(samples: int, rng: np.random.Generator, table: PriorTable | None = None) -> Constants:
    """`samples` independent draws of every constant from its prior."""
    table = table or load_priors()
    return constants_at(rng.standard_normal((samples, deviates(table))), table)


def prior_medians(table: PriorTable | None = None) -> Constants:
    """One draw: the prior median of each constant."""
    table = table or load_priors()
    return constants_at(np.zeros((1, deviates(table))), table)


def deviates(table: PriorTable) -> int:
    """How many independent normal variables a joint draw takes.

    A row over nodes or generations takes one: if 5 nm logic shrinks less than thought, so does 4
    nm.
    """
    return len(table.constants) + len(table.by_node) + len(table.by_memory)


def constants_at(z: FloatArray, table: PriorTable) -> Constants:
    """The constants that standard normal deviates stand for.

    Args:
        z: (S, `deviates(table)`).
        table: The priors.
    """
    columns = iter(z.T)
    return Constants(
        values={name: prior.at(next(columns)) for name, prior in table.constants.items()},
        by_node={name: _row(entries, next(columns)) for name, entries in table.by_node.items()},
        by_memory={
            name: _row(entries, next(columns)) for name, entries in table.by_memory.items()
        },
    )


def _row(entries: tuple[Prior, ...], z: FloatArray) -> FloatArray:
    return np.stack([prior.at(z) for prior in entries], axis=1)


def _listed(name: str, entry: Mapping[Any, Any], keys: tuple[Any, ...]) -> tuple[Prior, ...]:
    missing = [key for key in keys if key not in entry]
    if missing:
        raise ConfigError(f"{name}: no value for {missing[0]}", field=name, allowed=list(keys))
    nodes = all(isinstance(key, int) for key in keys)
    return tuple(
        Prior(unit=entry["unit"], node_nm=key if nodes else None, **entry[key]) for key in keys
    )


def _all_priors(table: PriorTable) -> list[tuple[str, Prior]]:
    listed = list(table.constants.items())
    for group in (table.by_node, table.by_memory):
        listed += [(name, prior) for name, entries in group.items() for prior in entries]
    return listed


def _check_unit(name: str, stated: str, expected: str) -> None:
    if stated != expected:
        raise ConfigError(f"{name} is stated in {stated}, read as {expected}", field=name)
