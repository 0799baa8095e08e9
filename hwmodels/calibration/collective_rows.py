"""Measured collectives, read into observations that the collective models can be asked about.

Each row of `data/collectives.csv` becomes an observation (verb, ranks by network level, message,
seconds) or is refused for one of `REFUSALS`. Messages count as in `hwmodels.collectives`, which is
the convention of nccl-tests. A row that prints a bus bandwidth alone is turned into a time with
that convention's factor. Hardware is looked up in `data/networks.yaml`, then in the catalogue.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from hwmodels import units
from hwmodels.catalog import load_cluster, rules
from hwmodels.collectives import busbw_factor
from hwmodels.errors import ConfigError
from hwmodels.network import Level
from hwmodels.placement import members
from hwmodels.table import HardwareTable

REFUSALS = {
    "recalled": "the row was not re-read from its source",
    "hardware not stated": "the source does not say what the collective ran on",
    "unknown hardware": "neither a measured network nor a machine of the catalogue",
    "a fit, not a measurement": "the row is a line fitted by its source",
    "copy": "a copy by one device or between two, not a collective",
    "unknown collective": "the verb is not one that the collective models know",
    "configuration not stated": "the number of ranks is not printed",
    "ranks do not fill nodes": "the ranks are not a whole number of full nodes",
    "network not stated": "ranks of several nodes without the rate of their network",
    "no time or rate": "neither a time nor a rate is printed",
}

# Sources whose rows may set parameters; the others only judge.
FIT_SOURCES = ("AIC", "AZ", "AWS")
FITTED_TECHNOLOGIES = ("nvlink3", "nvlink4", "nvlink5", "efa", "efa-v2")
SMALL_BYTES = 2**20
_LARGE_BYTES = 4 * 2**30  # what a bandwidth without a size is taken at
_PEAK_BYTES: Mapping[str, float] = {"sizes up to 128 MiB": 128 * 2**20}
_COPIES = ("host_to_device_copy", "device_to_host_copy", "p2p_read", "p2p_write")
_VERBS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
}
# Evidence for each: what the source says of its own rows, or a convention that differs.
_SUSPECT: Sequence[tuple[str, int, int, str]] = (
    ("ISS", 3, 5, "reported to the library's authors as too slow for its links"),
    ("ISS", 22, 34, "an old log with another convention of sizes"),
    ("ISS", 47, 57, "times include framework launches and are noisy, as the source says"),
)


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured collective.

    Args:
        id: The row.
        source: Its source as printed.
        prefix: The source's short name, the head of the id.
        hardware: What it ran on, as printed.
        chip: The chip's name.
        verb: A verb of `hwmodels.collectives`.
        levels: The network, innermost first, with what its technologies are like as shipped.
        members: Ranks that meet at each level.
        message_bytes: The message.
        measured_s: Seconds.
        algorithm: The algorithm that its run was confined to; empty if the library chose.
        assumed: What the row does not state and was filled in.
        suspect: Why it is neither fitted nor counted in headline means; None if it is.
    """

    id: str
    source: str
    prefix: str
    hardware: str
    chip: str
    verb: str
    levels: tuple[Level, ...]
    members: tuple[int, ...]
    message_bytes: float
    measured_s: float
    algorithm: str = ""
    assumed: tuple[str, ...] = ()
    suspect: str | None = None

    @property
    def ranks(self) -> int:
        """Ranks of the group."""
        return int(np.prod(self.members))

    @property
    def nodes(self) -> int:
        """Units of the innermost level that the group occupies."""
        return self.ranks // self.members[0]

    @property
    def technology(self) -> str:
        """Link technology of the outermost level that the group uses."""
        used = [t.technology for t, n in zip(self.levels, self.members, strict=True) if n > 1]
        return used[-1] if used else self.levels[0].technology

    @property
    def size_class(self) -> str:
        """`below 1 MiB` or `from 1 MiB`."""
        return "below 1 MiB" if self.message_bytes < SMALL_BYTES else "from 1 MiB"

    @property
    def fits(self) -> bool:
        """Whether the row may set parameters."""
        fitted = self.technology in FITTED_TECHNOLOGIES
        return self.prefix in FIT_SOURCES and self.suspect is None and fitted


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that the models are not asked about, and the key of `REFUSALS` that says why."""

    id: str
    source: str
    hardware: str
    collective: str
    reason: str


def read(path: Path | str | None = None) -> tuple[list[Observation], list[Refused]]:
    """The observations and refusals of a CSV with the columns of the bundled one (the default).

    Raises:
        ConfigError: The file cannot be read, or lacks the columns that every row needs.
    """
    observations: list[Observation] = []
    refused: list[Refused] = []
    for row in _table(path):
        outcome = _observation(row)
        if isinstance(outcome, Observation):
            observations.append(outcome)
        else:
            keys = ("id", "source", "hardware", "collective")
            text = {key: row.get(key) or "" for key in keys}
            refused.append(Refused(**text, reason=outcome))
    return observations, refused


def _table(path: Path | str | None) -> Sequence[dict[str, Any]]:
    if path is None:
        resource = files("hwmodels.calibration.data").joinpath("collectives.csv")
        text = resource.read_text(encoding="utf-8")
    else:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the file: {error}", file=str(path)) from error
    reader = csv.DictReader(text.splitlines(keepends=True))
    missing = {"id", "source", "hardware", "collective"} - set(reader.fieldnames or ())
    if missing:
        raise ConfigError(
            "columns are missing: " + ", ".join(sorted(missing)),
            file=str(path or "collectives.csv"),
        )
    return list(reader)


def _observation(row: Mapping[str, Any]) -> Observation | str:
    """The row as an observation, or a key of `REFUSALS`."""
    printed = (row.get("collective") or "").lower()
    hardware = row.get("hardware") or ""
    if row.get("verified") == "memory":
        return "recalled"
    if printed.endswith("_fit"):
        return "a fit, not a measurement"
    if printed in _COPIES:
        return "copy"
    verb = _VERBS.get(printed.partition(" ")[0])
    if verb is None:
        return "unknown collective"
    words = hardware.lower()
    if not hardware or words.startswith("unstated") or "type not" in words:
        return "hardware not stated"
    ranks = _number(row, "num_devices")
    if ranks is None or ranks < 2 or ranks != int(ranks):
        return "configuration not stated"
    found = _network(row, int(ranks))
    if isinstance(found, str):
        return found
    chip, levels, group, notes = found
    assumed = list(notes)
    message_bytes = _number(row, "message_bytes")
    if message_bytes is None:
        peaks = [size for text, size in _PEAK_BYTES.items() if text in (row.get("notes") or "")]
        message_bytes = peaks[0] if peaks else float(_LARGE_BYTES)
        assumed.append(f"a bandwidth without a size is taken at {message_bytes / 2**20:.0f} MiB")
    measured_us = _number(row, "time_us")
    if measured_us is None:
        rate = _number(row, "busbw_gb_per_s")
        if rate is None:
            return "no time or rate"
        factor = float(busbw_factor(verb, float(ranks)))
        measured_us = factor * message_bytes / (rate * 1e3)
        assumed.append("the time is that of the printed bus bandwidth")
    prefix, _, number = (row.get("id") or "").rpartition("-")
    return Observation(
        id=row["id"],
        source=row.get("source") or "",
        prefix=prefix,
        hardware=hardware,
        chip=chip,
        verb=verb,
        levels=levels,
        members=group,
        message_bytes=message_bytes,
        measured_s=measured_us * 1e-6,
        algorithm="ring" if "(ring)" in (row.get("library") or "").lower() else "",
        assumed=tuple(assumed),
        suspect=_suspect(prefix, number),
    )


def _suspect(prefix: str, number: str) -> str | None:
    for head, first, last, reason in _SUSPECT:
        if prefix == head and number.isdigit() and first <= int(number) <= last:
            return reason
    return None


_Found = tuple[str, tuple[Level, ...], tuple[int, ...], tuple[str, ...]]


def _network(row: Mapping[str, Any], ranks: int) -> _Found | str:
    """(chip, levels, members of each level, what was assumed), or a refusal."""
    hardware, link = row.get("hardware") or "", row.get("intra_link") or ""
    entry = _networks().get((hardware, link)) or _networks().get((hardware, ""))
    if entry is None:
        return _catalogued(hardware, ranks)
    per_node = _number(row, "devices_per_node") or float(entry["inside"]["size"])
    inside = _level("inside", entry["inside"], None)
    if not entry.get("spans_hosts"):
        inside = inside.model_copy(update={"size": int(min(per_node, inside.size))})
    together = min(ranks, inside.size)
    if ranks % together:
        return "ranks do not fill nodes"
    notes: tuple[str, ...] = (entry["assumed"],) if "assumed" in entry else ()
    if ranks == together:
        return entry["chip"], (inside,), (together,), notes
    gigabits = _number(row, "inter_link_gbit_per_s_per_device")
    between = entry.get("between")
    if between is None or (gigabits is None and "rate" not in between):
        return "network not stated"
    rate = None if gigabits is None else gigabits * 1e9 / 8
    nodes = ranks // together
    outer = _level("between", {"kind": "switch", "size": nodes, **between}, rate)
    if outer.technology in ("infiniband", "roce"):
        notes += ("the network's technology is taken as " + outer.technology,)
    return entry["chip"], (inside, outer), (together, nodes), notes


def _catalogued(hardware: str, ranks: int) -> _Found | str:
    """A machine of the catalogue by its name."""
    try:
        cluster = load_cluster(hardware, ranks)
        hw = HardwareTable.of([cluster])
        group = members(hw, [(np.array([ranks]), np.array([1]))])[0, 0]
    except ConfigError:
        return "unknown hardware"
    assumed = ("the machine and its network are the catalogue's",)
    return cluster.chip.name, cluster.levels, tuple(int(n) for n in group), assumed


def _level(name: str, fields: Mapping[str, Any], rate_bytes_per_s: float | None) -> Level:
    technology = rules.technologies()[fields["technology"]]
    if rate_bytes_per_s is None:
        rate_bytes_per_s = units.parse(
            fields["rate"], "bytes_per_s", file="networks.yaml", line=None, field=f"{name}.rate"
        )
    reduces = technology.in_network_reduction and fields["kind"] == "switch"
    return Level(
        name=name,
        kind=fields["kind"],
        size=fields["size"],
        bytes_per_s_per_chip_per_dir=rate_bytes_per_s,
        in_network_reduction=reduces and fields.get("reduces", True),
        technology=technology.name,
        **{field: number.value for field, number in technology.numbers.items()},
    )


@lru_cache(maxsize=1)
def _networks() -> Mapping[tuple[str, str], Mapping[str, Any]]:
    resource = files("hwmodels.calibration.data").joinpath("networks.yaml")
    entries = YAML(typ="safe", pure=True).load(resource.read_text(encoding="utf-8"))["networks"]
    return {(entry["hardware"], entry.get("intra_link", "")): entry for entry in entries}


def _number(row: Mapping[str, Any], column: str) -> float | None:
    text = row.get(column)
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and 0 < value < float("inf") else None
