"""What the catalogue holds, and everything known about one entry with its provenance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hwmodels.catalog import names
from hwmodels.catalog.chip_file import load_chip
from hwmodels.catalog.cluster_file import load_cluster
from hwmodels.chip import Chip
from hwmodels.errors import ConfigError
from hwmodels.network import Cluster
from hwmodels.sourced import Sourced, load_document

_FOLDERS = {"chip": "chips", "node": "nodes", "cluster": "nodes"}


@cache
def list_chips() -> tuple[str, ...]:
    """Names of the catalogued chips."""
    return tuple(sorted(name for name, _ in _named("chips")))


@cache
def list_nodes() -> tuple[str, ...]:
    """Names of the catalogued nodes."""
    return tuple(sorted(name for name, kind in _named("nodes") if kind == "node"))


@cache
def list_clusters() -> tuple[str, ...]:
    """Names of the catalogued clusters: nodes of a kind joined by a particular network."""
    return tuple(sorted(name for name, kind in _named("nodes") if kind == "cluster"))


def describe(
    name_or_path: str | Path, what: str | None = None, num_chips: int | None = None
) -> dict[str, Any]:
    """A chip, node or cluster with every number's provenance, as plain data.

    Args:
        name_or_path: A name, an alias, or the path of a file.
        what: `chip`, `node` or `cluster`; None tries chips, then nodes and clusters.
        num_chips: Size of the cluster; one scale-up domain where None.

    Returns:
        `kind, name, aliases, fields[], estimated[], notes`; a chip adds `vendor, silicon, year`, a
        node or cluster `chip, chips_per_node, num_chips, levels[]`. A field has `field, value`
        (SI), `text, written, source, date, low, high, status`; an estimated one is its name and
        `rule`.

    Raises:
        ConfigError: Unknown or ambiguous name, or a wrong file.
    """
    if what is None:
        what = _kind_of(name_or_path)
    if what not in _FOLDERS:
        raise ConfigError(f"nothing to show of {what!r}", value=what, allowed=[*_FOLDERS])
    if what == "chip":
        return _chip(load_chip(name_or_path), _aliases("chips", name_or_path))
    cluster = load_cluster(name_or_path, num_chips)
    return _cluster(what, cluster, _aliases("nodes", name_or_path))


def _chip(chip: Chip, aliases: list[str]) -> dict[str, Any]:
    return {
        "kind": "chip",
        "name": chip.name,
        "aliases": aliases,
        "vendor": chip.vendor,
        "silicon": chip.silicon,
        "year": chip.year,
        "fields": _fields(chip.facts),
        "estimated": _rules(chip.estimated, chip.facts),
        "notes": list(chip.notes),
    }


def _cluster(what: str, cluster: Cluster, aliases: list[str]) -> dict[str, Any]:
    return {
        "kind": what,
        "name": cluster.name,
        "aliases": aliases,
        "chip": cluster.chip.name,
        "chips_per_node": cluster.chips_per_node,
        "num_chips": cluster.num_chips,
        "levels": [level.model_dump() for level in cluster.levels],
        "fields": _fields(cluster.facts),
        "estimated": _rules(cluster.estimated, cluster.facts),
        "notes": list(cluster.notes),
    }


def _fields(facts: Mapping[str, Sourced]) -> list[dict[str, Any]]:
    return [
        {
            "field": name,
            "value": fact.value,
            "text": str(fact),
            "written": fact.written,
            "source": fact.source,
            "date": fact.date,
            "low": fact.low,
            "high": fact.high,
            "status": fact.status,
        }
        for name, fact in facts.items()
    ]


def _rules(estimated: Iterable[str], facts: Mapping[str, Sourced]) -> list[dict[str, str]]:
    return [{"field": name, "rule": facts[name].source} for name in estimated]


def _kind_of(name_or_path: str | Path) -> str:
    if names.is_path(name_or_path):
        return load_document(name_or_path, ("chip", "node", "cluster")).text("kind")
    wanted = names.folded(str(name_or_path))
    if wanted in names.stems("chips") or wanted in names.aliases("chips"):
        return "chip"
    path = names.find("nodes", str(name_or_path), what="chip, node or cluster", field="name")
    return load_document(path, ("node", "cluster")).text("kind")


def _aliases(folder: str, name_or_path: str | Path) -> list[str]:
    if names.is_path(name_or_path):
        return []
    stem = names.find(folder, str(name_or_path), what="name", field="name").stem
    return names.aliases_of(folder, stem)


def _named(folder: str) -> list[tuple[str, str]]:
    documents = (
        load_document(path, ("chip", "node", "cluster"))
        for path in sorted((names.CATALOG / folder).glob("*.yaml"))
    )
    return [(document.text("name"), document.text("kind")) for document in documents]
