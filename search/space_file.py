"""Reads the YAML of a hardware study: strict keys, units, and errors by file, line and field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from dse.precision import PRECISIONS as TRAINING_PRECISIONS
from dse.stacks import load_stack
from dse.workload import load_model, make_workload
from hwmodels.accelerator.design import MEMORIES, NODES_NM, PRECISIONS
from hwmodels.accelerator.known import load_known_silicon
from hwmodels.accelerator.template import KEYS, WHOLE
from hwmodels.catalog import list_chips, load_chip
from hwmodels.catalog.rules import technologies
from hwmodels.errors import ConfigError
from hwmodels.sourced import PROVENANCE_KEYS, Section, load_document
from hwmodels.yamltree import Entries, Items
from search.axes import Axis, Value, read_axis
from search.economics import read_economics
from search.narrowing import Narrowing, narrowing
from search.study_space import (
    AGGREGATES,
    CAPS,
    KIND,
    LARGEST_SPACE,
    NETWORK_KEYS,
    OBJECTIVES,
    TEMPLATE_KEYS,
    TEMPLATE_OPTIONAL,
    TOP_KEYS,
    TOPOLOGIES,
    Deadline,
    StudySpace,
    TrainingJob,
)


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
