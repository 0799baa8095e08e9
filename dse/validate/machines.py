"""The cluster of a published row: chip, node and links from the hardware text, the source and what
the row states itself.
"""

from __future__ import annotations

import functools
from pathlib import Path

from dse.validate.rows import Row
from dse.validate.vocabulary import meaning, node_of_chip
from hwmodels.catalog import Blueprint, list_chips, load_chip, names, read_blueprint
from hwmodels.catalog.names import folded
from hwmodels.chip import Chip
from hwmodels.errors import ConfigError
from hwmodels.network import Cluster
from hwmodels.sourced import load_document

BYTES_PER_S_PER_GBIT = 1e9 / 8


class NotKnownError(Exception):
    """A machine that is not in the catalogue; `reason` is a key of `REASONS`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def cluster_of(row: Row) -> tuple[Cluster, list[str]]:
    """The machine that a row ran on, as large as the job, and what was assumed about it.

    A link rate that the row states replaces the node's; its efficiency and latency stay.

    Raises:
        NotKnownError: The chip or its node is not in the catalogue, or the job does not fill it.
    """
    chip = _chip(row.hardware)
    node, why = _node(row, chip)
    assumed = [f"node = {node} ({why})"] if why else []
    try:
        path = names.find("nodes", node, what="node or cluster", field="cluster")
    except ConfigError as problem:
        raise NotKnownError("machine not known", problem.message) from None
    blueprint = _blueprint(path)  # a broken file of the catalogue is an error, not a refusal
    try:
        cluster = blueprint.sized(row.num_devices or 0, None)
    except ConfigError as problem:
        raise NotKnownError("machine not known", problem.message) from None
    if folded(cluster.chip.name) != folded(chip):
        cluster = cluster.model_copy(update={"chip": _other_chip(chip)})
    per_node = row.devices_per_node
    if per_node is not None and per_node < cluster.chips_per_node:
        assumed.append(f"devices of a node = {cluster.chips_per_node} ({per_node} stated)")
    if row.inter_link_gbit_per_s_per_device is not None and len(cluster.levels) > 1:
        cluster = _with_link(cluster, row.inter_link_gbit_per_s_per_device)
    elif len(cluster.levels) > 1 and cluster.levels[-1].size > 1:
        rate = cluster.levels[-1].bytes_per_s_per_chip_per_dir / BYTES_PER_S_PER_GBIT
        assumed.append(f"inter_link_gbit_per_s_per_device = {rate:g} (the node's)")
    return cluster, assumed


def _chip(text: str) -> str:
    known = _chip_stems()
    found = meaning("chips", text)
    if found is not None and found.take:
        if folded(found.take) in known:
            return known[folded(found.take)]
        raise NotKnownError("chip not known", f"{text}: {found.take} is not in the catalogue")
    if found is not None and found.refuse:
        raise NotKnownError("chip not known", f"{text}: {found.refuse}")
    if folded(text) in known:
        return known[folded(text)]
    raise NotKnownError("chip not known", text)


@functools.cache
def _chip_stems() -> dict[str, str]:
    return {folded(name): name for name in list_chips()}


def _node(row: Row, chip: str) -> tuple[str, str]:
    named = meaning("machines", row.hardware)
    if named is not None:
        return named.take, ""
    known = meaning("machines", row.source)
    if known is not None:
        return known.take, "known of the source"
    node = node_of_chip(chip.lower())
    if node is None:
        raise NotKnownError("machine not known", f"no node is listed for {chip}")
    return node, "the usual node of the chip"


@functools.cache
def _blueprint(path: Path) -> Blueprint:
    return read_blueprint(load_document(path, kinds=("cluster", "node")))


@functools.cache
def _other_chip(chip: str) -> Chip:
    return load_chip(chip)


def _with_link(cluster: Cluster, gbit_per_s: float) -> Cluster:
    rate = gbit_per_s * BYTES_PER_S_PER_GBIT
    levels = tuple(
        level if index == 0 else level.model_copy(update={"bytes_per_s_per_chip_per_dir": rate})
        for index, level in enumerate(cluster.levels)
    )
    return cluster.model_copy(update={"levels": levels})
