"""Fitted factors of software stacks: how much slower a step runs than its kernels say.

A stack on one generation of silicon keeps a nearly constant ratio to what kernels alone predict:
clocks under power limits, framework time, what no closed form names. `levels.yaml` holds that
ratio for compute, by stack and silicon, with the spread and the rows it was fitted on, beside one
factor for communication and one for launches of eager stacks. A pair that no published run was
fitted on takes its silicon's mean, a silicon without any takes the mean of all.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from ruamel.yaml import YAML

from dse.stacks.stack import Stack

POOLED = "any"
"""Name of the stack or silicon that stands for all."""


class Level(BaseModel):
    """One fitted factor.

    Attributes:
        stack: Name of the stack; `any` for the silicon's mean.
        silicon: Such as `ga100`; `any` for the mean of all.
        value: Factor on the time.
        log_sd: Standard deviation of its logarithm, for a stack of this name.
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
        fitted_on: Families whose rows told them; empty where nothing was fitted.
    """

    compute: Mapping[tuple[str, str], Level]
    network: float = 1.0
    host: float = 1.0
    fitted_on: tuple[str, ...] = ()

    def of(self, stack: str, silicon: str) -> Level:
        """The level of a stack on a silicon, from the nearest that was fitted."""
        for key in ((stack, silicon), (POOLED, silicon), (POOLED, POOLED)):
            if key in self.compute:
                return self.compute[key]
        return Level(stack=POOLED, silicon=POOLED, value=1.0, log_sd=0.0, rows=0)

    def apply(self, stack: Stack, silicon: str) -> Stack:
        """The stack with its factors multiplied by the fitted ones."""
        level = self.of(stack.name, silicon)
        return stack.model_copy(
            update={
                "compute_factor": stack.compute_factor * level.value,
                "network_factor": stack.network_factor * self.network,
                "launch_s": stack.launch_s * self.host,
            }
        )


UNFITTED = Levels({})
"""No published training run was used."""


@functools.cache
def shipped_levels() -> Levels:
    """The levels that come with the package."""
    text = resources.files("dse.stacks").joinpath("levels.yaml").read_text(encoding="utf-8")
    return from_document(YAML(typ="safe", pure=True).load(text))


def from_document(document: Mapping[str, Any]) -> Levels:
    """Levels as `to_document` wrote them."""
    entries = [Level(**entry) for entry in document["compute"]]
    return Levels(
        {(entry.stack, entry.silicon): entry for entry in entries},
        network=float(document["network"]),
        host=float(document["host"]),
        fitted_on=tuple(document["fitted_on"]),
    )


def to_document(levels: Levels) -> dict[str, Any]:
    """Levels as plain values for YAML."""
    return {
        "kind": "levels",
        "fitted_on": list(levels.fitted_on),
        "network": round(levels.network, 4),
        "host": round(levels.host, 4),
        "compute": [
            {
                **entry.model_dump(exclude={"families"}),
                "value": round(entry.value, 4),
                "log_sd": round(entry.log_sd, 4),
                "families": list(entry.families),
            }
            for entry in levels.compute.values()
        ],
    }
