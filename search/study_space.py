"""The space of a hardware study, from YAML: what may vary, what is capped, what is asked for.

A design is one position on every axis: those of the accelerator's template (or the choice of a
catalogued chip), of the network between the chips, and their number. What a design costs and how
fast it trains follows in `search.designs` and `search.inner`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.stacks import Stack, default_stack, load_stack
from dse.stacks.levels import shipped_levels, silicon_of
from dse.workload import Workload
from hwmodels.accelerator.template import KEYS, WHOLE
from hwmodels.catalog import load_chip
from hwmodels.sourced import PROVENANCE_KEYS
from search.axes import Axis, Value
from search.economics import Economics
from search.narrowing import Narrowing

KIND = "space"
TEMPLATE = "template"
OBJECTIVES = ("throughput", "throughput_per_w", "throughput_per_usd", "energy_per_token")
AGGREGATES = ("geometric-mean", "worst-regret")
TOPOLOGIES = ("switch", "torus-2d", "torus-3d")
TORUS_AXES = {"switch": 0, "torus-2d": 2, "torus-3d": 3}
LARGEST_SPACE = 1 << 62

TEMPLATE_OPTIONAL: Mapping[str, Value | None] = {
    "spare_cores": 0.0,
    "register_per_lane": 256.0,
    "dies": 1.0,
    "precision": "bf16",
    "memory_per_stack": None,
    "memory_rate_per_stack": None,
}
"""Template keys that a file may leave out, with what then holds; None: the generation's most."""
TEMPLATE_KEYS = (
    *(key for key in WHOLE),
    "special_per_cycle_per_core",
    "precision",
    "memory",
    *(key for key in KEYS if key not in ("scaleup", "nic")),
)
NETWORK_KEYS = (
    "scaleup",
    "nic",
    "scaleup_size",
    "topology",
    "oversubscription",
    "rails",
    "radix",
    "chips_per_host",
    "scaleup_technology",
    "scaleout_technology",
)
CAPS = {"area": "mm2", "tdp": "w", "price": "usd", "capital": "usd", "power": "w"}
"""Constraint to its dimension: of a package's dies, a chip at peak, a chip as made; of the whole
cluster with its network, to buy and to feed."""
TOP_KEYS = (
    "kind",
    "name",
    "models",
    "precision",
    "stack",
    "chips",
    "template",
    "chip",
    "network",
    "constraints",
    "objectives",
    "aggregate",
    "economics",
    "compare",
    "start",
    "trials",
    "plans",
    "notes",
    *PROVENANCE_KEYS,
)


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """One model of the study.

    Args:
        model: As named in the file.
        workload: What is trained.
        global_batch_size: Sequences a step.
        weight: Its share in an aggregate over models.
    """

    model: str
    workload: Workload
    global_batch_size: int
    weight: float

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one step trains on."""
        return self.global_batch_size * self.workload.seq_length


@dataclass(frozen=True, slots=True)
class Deadline:
    """A training that must end in time: `tokens` of every model within `time_s`."""

    tokens: float
    time_s: float


@dataclass(frozen=True)
class StudySpace:
    """All designs of a study, and how they are judged.

    Args:
        name: Of the study.
        file: Where it was read.
        jobs: Models to train.
        stack: Name or path of the software stack; None for the default one.
        axes: Every parameter in a fixed order; those of one value are fixed.
        from_catalogue: Whether chips come from the catalogue rather than the template.
        chips_per_host: Devices of a host, at most the scale-up domain.
        radix: Ports of a scale-out switch.
        rails: Separate scale-out networks.
        technologies: Names of the link technologies, scale-up and scale-out.
        caps: Constraint of `CAPS` to its limit, SI.
        deadline: Time to train, if there is one.
        objectives: Of `OBJECTIVES`, the first ranks.
        aggregate: Of `AGGREGATES`, where there are several models.
        economics: Prices of energy and time.
        compare: Catalogued nodes to stand beside the results.
        start: Designs to meet first, each axis to a value, or the name of a known silicon.
        trials: Designs to look at; None for the default.
        narrowing: What the plans may be.
        headroom_bytes: Memory to leave free beyond the reserve.
    """

    name: str
    file: str
    jobs: tuple[TrainingJob, ...]
    stack: str | None
    axes: tuple[Axis, ...]
    from_catalogue: bool
    chips_per_host: int
    radix: float
    rails: float
    technologies: tuple[str, str]
    caps: Mapping[str, float]
    deadline: Deadline | None
    objectives: tuple[str, ...]
    aggregate: str
    economics: Economics
    compare: tuple[str, ...] = ()
    start: tuple[str | Mapping[str, Value], ...] = ()
    trials: int | None = None
    narrowing: Narrowing = field(default_factory=Narrowing)

    @property
    def _base(self) -> Stack:
        return load_stack(self.stack) if self.stack else default_stack()

    @property
    def silicons(self) -> tuple[str, ...]:
        """Names that the stack's levels know the study's chips by; that of the template is its
        own."""
        if not self.from_catalogue:
            return (TEMPLATE,)
        names = (silicon_of(load_chip(str(name))) for name in self.axis("chip").values)
        return tuple(dict.fromkeys(names))

    def stack_on(self, silicon: str) -> Stack:
        """The software stack at the level that published runs told of it on a silicon."""
        return shipped_levels().apply(self._base, silicon)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Values of each axis."""
        return tuple(len(axis) for axis in self.axes)

    @property
    def size(self) -> int:
        """Designs of the space."""
        return prod(self.lengths)

    @property
    def varying(self) -> tuple[Axis, ...]:
        """Axes with a choice."""
        return tuple(axis for axis in self.axes if len(axis) > 1)

    def axis(self, name: str) -> Axis:
        """An axis by name."""
        return next(axis for axis in self.axes if axis.name == name)

    def positions(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """(H, axes) positions of designs by number; the last axis runs fastest."""
        rest = np.array(index, dtype=np.int64)
        columns = []
        for length in reversed(self.lengths):
            columns.append(rest % length)
            rest = rest // length
        return np.stack(columns[::-1], axis=1)

    def index(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """(H,) numbers of designs by position."""
        number = np.zeros(len(positions), dtype=np.int64)
        for place, length in enumerate(self.lengths):
            number = number * length + positions[:, place]
        return number

    def described(self, index: int) -> dict[str, Value]:
        """Axis to value of one design, SI or words."""
        at = self.positions(np.array([index]))[0]
        return {axis.name: axis.values[at[i]] for i, axis in enumerate(self.axes)}

    def written(self, index: int) -> dict[str, str]:
        """Axis to text of one design, only where there is a choice."""
        at = self.positions(np.array([index]))[0]
        return {axis.name: axis.text(at[i]) for i, axis in enumerate(self.axes) if len(axis) > 1}

    def canonical(self) -> dict[str, Any]:
        """Everything that results depend on, as plain JSON."""
        return {
            "models": [
                {
                    "workload": job.workload.model_dump(mode="json"),
                    "global_batch_size": job.global_batch_size,
                    "weight": job.weight,
                }
                for job in self.jobs
            ],
            "stacks": {
                silicon: self.stack_on(silicon).model_dump(mode="json")
                for silicon in self.silicons
            },
            "axes": {axis.name: list(axis.values) for axis in self.axes},
            "network": {
                "chips_per_host": self.chips_per_host,
                "radix": self.radix,
                "rails": self.rails,
                "technologies": list(self.technologies),
            },
            "constraints": dict(self.caps),
            "deadline": asdict(self.deadline) if self.deadline else None,
            "objectives": list(self.objectives),
            "aggregate": self.aggregate,
            "economics": asdict(self.economics),
            "start": [entry if isinstance(entry, str) else dict(entry) for entry in self.start],
            "plans": {
                "allowed": {axis: list(v) for axis, v in self.narrowing.allowed.items()},
                "chips_per_tp_span": self.narrowing.chips_per_tp_span,
                "headroom_bytes": self.narrowing.headroom_bytes,
            },
        }

    @property
    def sha256(self) -> str:
        """Fingerprint of `canonical`."""
        text = json.dumps(self.canonical(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
