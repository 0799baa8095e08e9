"""The space of a hardware study, from YAML: what may vary, what is capped, what is asked for.

A design is one position on every axis: those of the accelerator's template (or the choice of a
catalogued chip), of the network between the chips, and their number. What a design costs and how
fast it trains follows in `search.designs` and `search.inner`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.precision import PRECISIONS as TRAINING_PRECISIONS
from dse.stacks import Stack, default_stack, load_stack
from dse.stacks.levels import shipped_levels, silicon_of
from dse.workload import Workload, load_model, make_workload
from hwmodels.accelerator.design import MEMORIES, NODES_NM, PRECISIONS
from hwmodels.accelerator.template import KEYS, WHOLE
from hwmodels.catalog import list_chips, load_chip
from hwmodels.catalog.rules import technologies
from hwmodels.errors import ConfigError
from hwmodels.sourced import PROVENANCE_KEYS, Section, load_document
from search.axes import Axis, Value, read_axis
from search.economics import ECONOMICS_KEYS, Economics, read_economics
from search.narrowing import Narrowing, narrowing

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


def load_space(path: str | Path) -> StudySpace:
    """The space of a YAML file of `kind: space`.

    Raises:
        ConfigError: A malformed file, an unknown name, a value that nothing can have, an objective
            or constraint that lacks what it is computed from.
        UnitError: A quantity without its unit.
    """
    return read_space(load_document(path, kinds=(KIND,)))


def read_space(top: Section) -> StudySpace:
    """The space of an open file; errors as for `load_space`."""
    top.only(TOP_KEYS, required=("kind", "models", "chips", "objectives"))
    if ("template" in top) == ("chip" in top):
        top.refuse(None, "needs either template: (a design to find) or chip: (catalogued chips)")
    precision = top.choice("precision", TRAINING_PRECISIONS, "bf16")
    stack = _stack(top)
    network = top.section("network")
    if network is None:
        top.refuse(None, "missing network")
    from_catalogue = "chip" in top
    axes = (
        *(_catalogue_axes(top) if from_catalogue else _template_axes(top)),
        *_network_axes(network, from_catalogue=from_catalogue),
        read_axis(top, "chips", whole=True, least=1, most=10**7),
    )
    if prod(len(axis) for axis in axes) > LARGEST_SPACE:
        top.refuse(None, "the space holds more designs than can be numbered, over 4e18")
    objectives = top.texts("objectives")
    _check_words(top, "objectives", objectives, OBJECTIVES)
    chips_per_host = network.integer("chips_per_host", 8, maximum=10_000)
    caps, deadline = _constraints(top)
    space = StudySpace(
        name=top.text("name", Path(top.file).stem),
        file=top.file,
        jobs=tuple(_job(section, precision) for section in top.sections("models")),
        stack=stack,
        axes=axes,
        from_catalogue=from_catalogue,
        chips_per_host=chips_per_host,
        radix=float(network.integer("radix", 64, minimum=2, maximum=100_000)),
        rails=float(network.integer("rails", 1, maximum=1_000)),
        technologies=(
            _technology(network, "scaleup_technology", "other-scaleup"),
            _technology(network, "scaleout_technology", "other-scaleout"),
        ),
        caps=caps,
        deadline=deadline,
        objectives=objectives,
        aggregate=top.choice("aggregate", AGGREGATES, AGGREGATES[0]),
        economics=read_economics(top),
        compare=top.texts("compare"),
        start=_start(top, axes),
        trials=top.integer("trials", maximum=10**7) if "trials" in top else None,
        narrowing=_narrowing(top, chips_per_host),
    )
    if not space.jobs:
        top.refuse("models", "is empty")
    return space


def _stack(top: Section) -> str | None:
    if "stack" not in top:
        return None
    name = top.text("stack")
    if name.endswith((".yaml", ".yml")):
        name = str(Path(top.file).parent / name)
    try:
        load_stack(name)
    except ConfigError as error:
        if error.file is not None:
            raise
        top.refuse("stack", error.message, value=name, allowed=error.allowed, hint=error.hint)
    return name


def _job(section: Section, precision: str) -> TrainingJob:
    section.only(
        ("model", "global_batch_size", "seq_length", "weight"),
        required=("model", "global_batch_size"),
    )
    name = section.text("model")
    try:
        config = load_model(name)
        length = section.integer("seq_length") if "seq_length" in section else None
        workload = make_workload(config, length, precision)
    except ConfigError as error:
        if error.file is not None:
            raise
        section.refuse(
            error.field if error.field == "seq_length" else "model",
            error.message,
            value=error.value,
            allowed=error.allowed,
            hint=error.hint,
        )
    return TrainingJob(
        model=name,
        workload=workload,
        global_batch_size=section.integer("global_batch_size", maximum=10**8),
        weight=section.number("weight", 1.0, minimum=1e-6, maximum=1e6),
    )


def _catalogue_axes(top: Section) -> tuple[Axis, ...]:
    node = top.tree.entries["chip"]
    names = (top.text("chip"),) if not hasattr(node, "items") else top.texts("chip")
    found = []
    for name in names:
        try:
            found.append(load_chip(name).name.lower())
        except ConfigError as error:
            top.refuse("chip", error.message, value=name, allowed=sorted(list_chips()))
    if not found or len(set(found)) < len(found):
        top.refuse("chip", "is empty or names a chip twice")
    return (Axis("chip", tuple(found)),)


def _template_axes(top: Section) -> tuple[Axis, ...]:
    section = top.section("template")
    if section is None:
        top.refuse("template", "is empty")
    required = [key for key in TEMPLATE_KEYS if key not in TEMPLATE_OPTIONAL]
    section.only((*TEMPLATE_KEYS, *PROVENANCE_KEYS), required=required)
    axes: list[Axis] = []
    for key in TEMPLATE_KEYS:
        if key not in section:
            default = TEMPLATE_OPTIONAL.get(key)
            if default is not None:
                axes.append(Axis(key, (default,), KEYS[key][1] if key in KEYS else ""))
        elif key in ("precision", "memory"):
            axes.append(read_axis(section, key, words=_WORDS[key]))
        elif key in KEYS:
            axes.append(read_axis(section, key, dimension=KEYS[key][1], least=1e-9))
        elif key in WHOLE:
            least = 0 if key == "spare_cores" else 1
            axes.append(read_axis(section, key, whole=True, least=least, most=_MOST.get(key, 1e6)))
        else:
            axes.append(read_axis(section, key, least=1e-9, most=1e6))
    node = next(axis for axis in axes if axis.name == "node_nm")
    unknown = [value for value in node.values if value not in NODES_NM]
    if unknown:
        section.refuse("node_nm", "unknown node", value=unknown[0], allowed=list(NODES_NM))
    return tuple(axes)


_WORDS: Mapping[str, Sequence[str]] = {"precision": PRECISIONS, "memory": MEMORIES}
_MOST = {"rows": 1024, "cols": 1024}


def _network_axes(network: Section, *, from_catalogue: bool) -> tuple[Axis, ...]:
    required = ("scaleup_size", "nic") if from_catalogue else ("scaleup_size", "nic", "scaleup")
    network.only((*NETWORK_KEYS, *PROVENANCE_KEYS), required=required)
    axes = [
        read_axis(network, key, dimension="bytes_per_s", least=1.0)
        for key in ("scaleup", "nic")
        if key in network
    ]
    axes.append(read_axis(network, "scaleup_size", whole=True, least=1, most=10**6))
    if "topology" in network:
        axes.append(read_axis(network, "topology", words=TOPOLOGIES))
    else:
        axes.append(Axis("topology", ("switch",)))
    if "oversubscription" in network:
        axes.append(read_axis(network, "oversubscription", least=1.0, most=1e3))
    else:
        axes.append(Axis("oversubscription", (1.0,)))
    return tuple(axes)


def _technology(network: Section, key: str, default: str) -> str:
    name = network.text(key, default)
    if name not in technologies():
        network.refuse(
            key, f"unknown technology {name[:40]!r}", value=name, allowed=list(technologies())
        )
    return name


def _constraints(top: Section) -> tuple[dict[str, float], Deadline | None]:
    section = top.section("constraints")
    if section is None:
        return {}, None
    section.only((*CAPS, "deadline", *PROVENANCE_KEYS))
    caps: dict[str, float] = {}
    for key, dimension in CAPS.items():
        fact = section.quantity(key, dimension)
        if fact is not None:
            caps[key] = fact.value
    inner = section.section("deadline")
    if inner is None:
        return caps, None
    inner.only(("tokens", "time"), required=("tokens", "time"))
    time = inner.quantity("time", "s", required=True)
    return caps, Deadline(inner.number("tokens", minimum=1.0), 0.0 if time is None else time.value)


def _check_words(top: Section, key: str, words: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    if not words or len(set(words)) < len(words):
        top.refuse(key, "is empty or repeats a word", allowed=list(allowed))
    for word in words:
        if word not in allowed:
            top.refuse(key, f"unknown objective {word[:40]!r}", value=word, allowed=list(allowed))


def _start(top: Section, axes: tuple[Axis, ...]) -> tuple[str | Mapping[str, Value], ...]:
    """Designs to begin with: names of known silicons, or one value an axis."""
    from hwmodels.accelerator.known import load_known_silicon
    from hwmodels.yamltree import Entries, Items

    node = top.tree.entries.get("start")
    if node is None:
        return ()
    if not isinstance(node, Items):
        top.refuse("start", "is not a sequence")
    known = {entry.name.lower(): entry.name for entry in load_known_silicon()}
    found: list[str | Mapping[str, Value]] = []
    for place, item in enumerate(node.items):
        if isinstance(item, Entries):
            section = Section(item, top.file, f"start[{place}]")
            varying = {axis.name: axis for axis in axes}
            section.only(tuple(varying))
            found.append(
                {
                    key: read_axis(
                        section,
                        key,
                        dimension=varying[key].dimension,
                        words=None if varying[key].is_ordered else _texts(varying[key]),
                    ).values[0]
                    for key in section
                }
            )
            continue
        name = getattr(item, "value", None)
        if not isinstance(name, str) or name.lower() not in known:
            top.refuse("start", f"item {place} is no known silicon", allowed=sorted(known))
        found.append(known[name.lower()])
    return tuple(found)


def _texts(axis: Axis) -> list[str]:
    return [str(value) for value in axis.values]


def _narrowing(top: Section, chips_per_host: int) -> Narrowing:
    section = top.section("plans")
    if section is None:
        return Narrowing()
    section.only(("allow", "max_tp_span", "headroom"))
    allow: dict[str, Sequence[object]] = {}
    inner = section.section("allow")
    for axis in inner if inner is not None else ():
        node = inner.tree.entries[axis] if inner is not None else None
        items = getattr(node, "items", (node,))
        allow[axis] = [getattr(item, "value", None) for item in items]
    headroom = section.quantity("headroom", "bytes", zero=True)
    try:
        return narrowing(
            None,
            allow,
            tp_span=section.text("max_tp_span") if "max_tp_span" in section else None,
            chips_per_node=chips_per_host,
            headroom_bytes=0.0 if headroom is None else headroom.value,
        )
    except ConfigError as error:
        section.refuse(
            None, error.message, value=error.value, allowed=error.allowed, hint=error.hint
        )


__all__ = [
    "CAPS",
    "ECONOMICS_KEYS",
    "OBJECTIVES",
    "Deadline",
    "StudySpace",
    "TrainingJob",
    "load_space",
    "read_space",
]
