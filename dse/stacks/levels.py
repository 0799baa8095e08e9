"""Fitted factors of software stacks: how much slower a step runs than its kernels say.

A stack on one generation of silicon keeps a nearly constant ratio to what kernels alone predict:
clocks under power limits, framework time, what no closed form names. `levels.yaml` holds that
ratio for compute, by stack and silicon, with the spread and the rows it was fitted on, beside one
factor for communication and one for launches of eager stacks. A pair that no published run was
fitted on takes its silicon's mean, a silicon without any takes the mean of all.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from dse.stacks.stack import Stack, default_stack, load_stack
from hwmodels.chip import Chip

POOLED = "any"
"""Name of the stack or silicon that stands for all."""


class Level(BaseModel):
    """One fitted factor.

    Attributes:
        stack: Name of the stack; `any` for the silicon's mean.
        silicon: Such as `ga100`; `any` for the mean of all.
        value: Factor on the time.
        log_sd: Standard deviation of its logarithm as fitted; a stack that is not this one departs
            from it by more, see `Levels.spread`.
        rows: Published rows that told it.
        families: Who published them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    stack: str
    silicon: str
    value: float = Field(gt=0)
    log_sd: float = Field(ge=0)
    rows: int = Field(ge=0)
    families: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Levels:
    """All factors of one fit.

    Args:
        compute: (stack, silicon) to the factor on kernels.
        network: Factor on communication.
        host: Factor on the time of a launch.
        level_sd: Log standard deviation of the level of a source whose stack was not fitted.
        structure_sd: The same of what remains between plans of one source.
        fitted_on: Families whose rows told them; empty where nothing was fitted, then both
            spreads are those that stacks state.
    """

    compute: Mapping[tuple[str, str], Level]
    network: float = 1.0
    host: float = 1.0
    level_sd: float = 0.0
    structure_sd: float = 0.0
    fitted_on: tuple[str, ...] = ()

    def of(self, stack: str, silicon: str) -> Level:
        """The level of a stack on a silicon, from the nearest that was fitted."""
        for key in ((stack, silicon), (POOLED, silicon), (POOLED, POOLED)):
            if key in self.compute:
                return self.compute[key]
        return Level(stack=POOLED, silicon=POOLED, value=1.0, log_sd=0.0, rows=0)

    def spread(self, stack: Stack, silicon: str) -> tuple[float, float]:
        """Log standard deviations of a prediction's level and of its structure."""
        if not self.fitted_on:
            return stack.level_sd, stack.structure_sd
        level = self.of(stack.name, silicon)
        unseen = self.level_sd if level.stack == POOLED else 0.0
        return math.hypot(level.log_sd, unseen), self.structure_sd

    def apply(self, stack: Stack, silicon: str) -> Stack:
        """The stack with its factors multiplied by the fitted ones, and the spreads that go with
        them; as it is where nothing was fitted, or where its file states a level of its own.
        """
        if not self.fitted_on or stack.calibration == "own":
            return stack
        level_sd, structure_sd = self.spread(stack, silicon)
        return stack.model_copy(
            update={
                "compute_factor": stack.compute_factor * self.of(stack.name, silicon).value,
                "network_factor": stack.network_factor * self.network,
                "launch_s": stack.launch_s * self.host,
                "level_sd": level_sd,
                "structure_sd": structure_sd,
                "calibration": "shipped",
            }
        )


UNFITTED = Levels({})
"""No published training run was used."""


def calibrated_stack(stack: Stack | str | None, chip: Chip) -> Stack:
    """The stack to price a job with: its name's file with the shipped levels of the chip.

    Args:
        stack: A bundled name or the path of a YAML file; the default stack if None. A `Stack` is
            taken as it is, its factors being the caller's.
        chip: Chip of the job.

    Raises:
        ConfigError: Unknown name, or a malformed file.
    """
    if isinstance(stack, Stack):
        return stack
    named = load_stack(stack) if stack else default_stack()
    return shipped_levels().apply(named, silicon_of(chip))


def silicon_of(chip: Chip) -> str:
    """The name that levels keep a chip's generation by."""
    return chip.silicon or chip.name


@functools.cache
def shipped_levels(without: str | None = None) -> Levels:
    """The levels that come with the package.

    Args:
        without: A family of sources whose rows must not have told them. A family that told
            nothing leaves them as they are.
    """
    text = resources.files("dse.stacks").joinpath("levels.yaml").read_text(encoding="utf-8")
    document = json.loads(text)  # the file is YAML in its JSON form
    return _read(document["without"].get(without, document["all"]))


def _read(entry: Mapping[str, Any]) -> Levels:
    compute = [Level(**fields) for fields in entry["compute"]]
    return Levels(
        {(level.stack, level.silicon): level for level in compute},
        network=float(entry["network"]),
        host=float(entry["host"]),
        level_sd=float(entry["level_sd"]),
        structure_sd=float(entry["structure_sd"]),
        fitted_on=tuple(entry["fitted_on"]),
    )


def document_of(shipped: Levels, without: Mapping[str, Levels]) -> dict[str, Any]:
    """The content of `levels.yaml`: levels of all families, and by family those of the others."""
    return {
        "kind": "levels",
        "all": _written(shipped),
        "without": {family: _written(levels) for family, levels in without.items()},
    }


def _written(levels: Levels) -> dict[str, Any]:
    return {
        "fitted_on": list(levels.fitted_on),
        "network": round(levels.network, 4),
        "host": round(levels.host, 4),
        "level_sd": round(levels.level_sd, 4),
        "structure_sd": round(levels.structure_sd, 4),
        "compute": [
            {
                "stack": level.stack,
                "silicon": level.silicon,
                "value": round(level.value, 4),
                "log_sd": round(level.log_sd, 4),
                "rows": level.rows,
                "families": list(level.families),
            }
            for level in levels.compute.values()
        ],
    }
