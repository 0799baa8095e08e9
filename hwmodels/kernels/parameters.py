"""Kernel parameters of a silicon, each with its range, its source and how it is known.

Files in `hwmodels/calibration/`, one a silicon (`ga100.yaml`), one a family (`nvidia.yaml`) and
one for everything (`generic.yaml`). A parameter is taken from the first that states it:

    the silicon's own file   with the status it states there
    its family's file        `transferred`, or `assumed` where the family's is assumed
    the generic file         `assumed`

A family's range is the spread between silicons, so that a transferred value brings a wider range
than a measured one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files

from hwmodels.errors import ConfigError

MEASURED, TRANSFERRED, ASSUMED = "measured", "transferred", "assumed"
GENERIC = "generic"
PER_DTYPE = ("matmul_efficiency", "matmul_sustained")
FAMILY_OF_VENDOR = {
    "nvidia": "nvidia",
    "amd": "amd",
    "google": "systolic",
    "aws": "systolic",
    "amazon": "systolic",
    "intel": "systolic",
}
# What a missing dtype is taken from, nearest first.
_NEAREST_DTYPES = ("bf16", "fp16", "tf32", "fp8", "fp32", "fp4")
_MEMORY_PARAMETERS = (
    "matmul_memory_efficiency",
    "memory_efficiency",
    "optimizer_memory_efficiency",
)
_SAME_MEMORY = 0.10  # a rate within 10 % is the memory that was measured


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number of a kernel model.

    Args:
        value: The estimate, in `unit`.
        low: Lower end of the central 80 % of what is plausible.
        high: Upper end of it.
        unit: `1` for a share, else the SI unit.
        status: `measured`, `transferred` or `assumed`.
        source: Where the number comes from.
        data: Which rows it was fitted on; empty if none.
    """

    value: float
    low: float
    high: float
    unit: str
    status: str
    source: str
    data: str = ""


def for_silicon(
    silicon: str,
    *,
    vendor: str = "",
    family: str | None = None,
    memory_bytes_per_s: float | None = None,
) -> tuple[dict[str, float], dict[str, str]]:
    """Every kernel parameter by name, and the status of each.

    Args:
        silicon: Die name in lower case, such as `ga100`; unknown names fall back to the family.
        vendor: Names the family when `family` is None.
        family: `nvidia`, `amd`, `systolic` or `generic`.
        memory_bytes_per_s: The chip's nominal rate. Where it is not the one that the silicon was
            measured with, its memory parameters count as transferred.

    Raises:
        ConfigError: No such family.
    """
    known = parameters_for(
        silicon, vendor=vendor, family=family, memory_bytes_per_s=memory_bytes_per_s
    )
    return (
        {name: entry.value for name, entry in known.items()},
        {name: entry.status for name, entry in known.items()},
    )


def parameters_for(
    silicon: str,
    *,
    vendor: str = "",
    family: str | None = None,
    memory_bytes_per_s: float | None = None,
) -> dict[str, Parameter]:
    """As `for_silicon`, with ranges and sources."""
    family = family or FAMILY_OF_VENDOR.get(vendor.lower(), GENERIC)
    if not _is_file(family):
        raise ConfigError(
            f"no kernel family {family!r}",
            field="family",
            value=family,
            allowed=sorted({*FAMILY_OF_VENDOR.values(), GENERIC}),
        )
    found = {name: replace(entry, status=ASSUMED) for name, entry in load(GENERIC)[0].items()}
    for name, entry in load(family)[0].items():
        found[name] = replace(entry, status=ASSUMED if entry.status == ASSUMED else TRANSFERRED)
    if silicon and silicon != family and _is_file(silicon):
        own, measured_rate = load(silicon)
        found.update(own)
        if memory_bytes_per_s and measured_rate:
            other = abs(memory_bytes_per_s / measured_rate - 1.0) > _SAME_MEMORY
            for name in _MEMORY_PARAMETERS:
                if other and found[name].status == MEASURED:
                    found[name] = replace(found[name], status=TRANSFERRED)
    return found


def columns_with_defaults(values: Mapping[str, float], dtypes: Iterable[str]) -> dict[str, float]:
    """The parameters, with an efficiency for every dtype of a chip's peaks.

    A dtype without its own takes that of the nearest one present (16 bit first).

    Raises:
        ConfigError: No dtype has an efficiency.
    """
    filled = dict(values)
    for stem in PER_DTYPE:
        present = [d for d in _NEAREST_DTYPES if f"{stem}.{d}" in values]
        if not present:
            raise ConfigError(f"no {stem} for any dtype", field=f"kernel.{stem}")
        for dtype in dtypes:
            filled.setdefault(f"{stem}.{dtype}", values[f"{stem}.{present[0]}"])
    return filled


@lru_cache(maxsize=64)
def load(name: str) -> tuple[Mapping[str, Parameter], float | None]:
    """The parameters of one file, and the memory rate that its silicon was measured with."""
    text = files("hwmodels.calibration").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    document = json.loads(text)  # the files are YAML in its JSON form
    entries = {key: Parameter(**fields) for key, fields in document["parameters"].items()}
    rate = document.get("measured_memory_bytes_per_s")
    return entries, None if rate is None else float(rate)


def _is_file(name: str) -> bool:
    return name.replace("-", "").isalnum() and (
        files("hwmodels.calibration").joinpath(f"{name}.yaml").is_file()
    )
