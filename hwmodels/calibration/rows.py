"""Measured kernel rows, read into observations that a kernel model can be asked about.

Each row of `data/kernels.csv` becomes an observation with a class, sizes in the model's own
terms and a time, or is refused for one of `REFUSALS`. Rates that a source prints are turned into
times with the source's own count of operations (attention: half of the square when causal,
backward 2.5 times forward).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from ruamel.yaml import YAML

from hwmodels.errors import ConfigError
from hwmodels.kernels.conv import Convolution

KernelClass = Literal["matmul", "conv", "attention", "unfused attention", "pass", "memory rate"]

REFUSALS = {
    "sparse attention": "attention with learned or compressed indices is not modelled",
    "configuration not stated": "a size, the mask or the direction is not printed",
    "no time or rate": "neither a time nor a rate is printed",
    "recalled": "the row was not re-read from its source",
    "unknown hardware": "the device is not in the table of measured devices",
    "unknown dtype": "the precision is not one that the kernel models know",
    "unknown kernel": "the operator is not one that the kernel models know",
}

# Sources whose rows may set parameters; the others only judge. So do a silicon with two rows, and
# unfused attention, whose traffic is counted and not fitted.
FIT_SOURCES = ("AIC", "AICA", "AZ", "MAMF", "FA", "DB", "DBC")
JUDGED_SILICONS = ("gb110",)
# Sources that time one kernel at a time at whatever clock it gets; the others run continuously.
BURST_SOURCES = ("AIC",)
# Sources that time whole calls of an eager framework, host and synchronisation included. The
# shortest row of a sweep says what a call costs there, and is not judged.
CALL_SOURCES = ("LLMC",)
# Serving stacks also write keys and values to their cache inside the timed attention.
CACHE_SOURCES = ("AICA",)

_DTYPES = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
    "fp32": "fp32",
    "fp16 mixed": "fp16",
    "fp16/bf16": "bf16",
    "bf16 (as in that section)": "bf16",
}
_IMPLEMENTATIONS = {
    "FlashAttention": "flash1",
    "FlashAttention Triton": "triton",
    "xformers": "xformers",
}
# Sizes of a convolution as the notes print them, width before height.
_CONVOLUTION = re.compile(
    r"W=(\d+) H=(\d+) C=(\d+) K=(\d+) filter (\d+)x(\d+) pad (\d+),(\d+) stride (\d+),(\d+)"
    r"(?: groups (\d+))?"
)
_CONVOLUTION_DIRECTIONS = {"fwd": "forward", "bwd_data": "dgrad", "bwd_weight": "wgrad"}
_PASSES = ("softmax", "layernorm", "gelu")
_PASS_BYTES_PER_ELEMENT = 4.0  # fp16 in and out
_STREAM_BYTES = 1e9  # a rate is judged on any size that hides the launch
_GIGA_ELEMENTS = re.compile(r"throughput value ([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Device:
    """A measured device: nominal dense rates, SI, as its maker states them."""

    hardware: str
    chip: str
    vendor: str
    silicon: str
    peak_flop_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    num_cores: int
    source: str
    vector_flop_per_s: float | None = None
    notes: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured kernel.

    Args:
        id: The row.
        source: Its source as printed.
        prefix: The source's short name, the head of the id.
        device: What it ran on.
        kernel: The operator as printed.
        kind: Class of the kernel.
        dtype: Element type.
        sizes: (m, n, k, batch) of a matmul; the fields of `hwmodels.kernels.conv.Convolution` in
            order; (batch, heads, kv heads, queries, keys, head size,
            share of pairs) of attention; (bytes,) of a pass or stream.
        measured_s: Seconds.
        direction: `forward`, `backward` or `both`; of a convolution see its model.
        implementation: Of attention, see `hwmodels.kernels.attention`.
        burst: Timed alone, at a clock above the sustained one.
        writes_cache: The time includes copying keys and values to a cache.
        call_s: What an empty call of this benchmark costs; 0 where only the kernel is timed.
        suspect: Why it is neither fitted nor counted in headline means; None if it is.
    """

    id: str
    source: str
    prefix: str
    device: Device
    kernel: str
    kind: KernelClass
    dtype: str
    sizes: tuple[float, ...]
    measured_s: float
    direction: str = "forward"
    implementation: str = "current"
    burst: bool = False
    writes_cache: bool = False
    call_s: float = 0.0
    suspect: str | None = None

    @property
    def fits(self) -> bool:
        """Whether the row may set parameters."""
        judged = self.kind == "unfused attention" or self.device.silicon in JUDGED_SILICONS
        return self.prefix in FIT_SOURCES and self.suspect is None and not judged


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that no kernel model is asked about, and the key of `REFUSALS` that says why."""

    id: str
    source: str
    hardware: str
    kernel: str
    reason: str


def read(path: Path | None = None) -> tuple[list[Observation], list[Refused]]:
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
            text = {key: row.get(key) or "" for key in ("id", "source", "hardware", "kernel")}
            refused.append(Refused(**text, reason=outcome))
    return _with_call_costs(observations), refused


@lru_cache(maxsize=1)
def devices() -> Mapping[str, Device]:
    """Measured devices by the name that the rows print."""
    text = files("hwmodels.calibration.data").joinpath("devices.yaml").read_text(encoding="utf-8")
    entries = YAML(typ="safe", pure=True).load(text)["devices"]
    return {entry["hardware"]: Device(**entry) for entry in entries}


def _with_call_costs(observations: Sequence[Observation]) -> list[Observation]:
    """The rows of `CALL_SOURCES` with the cost of a call of their sweep."""
    sweeps: dict[tuple[str, ...], Observation] = {}
    for o in observations:
        if o.prefix in CALL_SOURCES:
            shortest = sweeps.setdefault(_sweep(o), o)
            if o.measured_s < shortest.measured_s:
                sweeps[_sweep(o)] = o
    out = []
    for o in observations:
        shortest_of = sweeps.get(_sweep(o))
        if shortest_of is o:
            o = replace(o, suspect="sets the cost of a call of its sweep", call_s=o.measured_s)
        elif shortest_of is not None:
            o = replace(o, call_s=shortest_of.measured_s)
        out.append(o)
    return out


def _sweep(o: Observation) -> tuple[str, ...]:
    return (o.prefix, o.device.hardware, o.kernel)


def _table(path: Path | None) -> Sequence[dict[str, Any]]:
    if path is None:
        text = (
            files("hwmodels.calibration.data").joinpath("kernels.csv").read_text(encoding="utf-8")
        )
    else:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the file: {error}", file=str(path)) from error
    reader = csv.DictReader(text.splitlines(keepends=True))
    missing = {"id", "source", "hardware", "kernel"} - set(reader.fieldnames or ())
    if missing:
        raise ConfigError(
            "columns are missing: " + ", ".join(sorted(missing)), file=str(path or "kernels.csv")
        )
    return list(reader)


def _number(row: Mapping[str, Any], column: str) -> float | None:
    text = row.get(column)
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and value > 0 else None


def _observation(row: Mapping[str, Any]) -> Observation | str:
    """The row as an observation, or a key of `REFUSALS`."""
    kernel = (row.get("kernel") or "").lower()
    if row.get("verified") == "memory":
        return "recalled"
    if "sparse" in kernel:
        return "sparse attention"
    device = devices().get(row.get("hardware") or "")
    if device is None:
        return "unknown hardware"
    prefix = row["id"].rpartition("-")[0]
    common: dict[str, Any] = {
        "id": row["id"],
        "source": row["source"],
        "prefix": prefix,
        "device": device,
        "kernel": kernel,
    }
    if kernel.startswith("hbm bandwidth"):
        rate = _number(row, "gb_per_s")
        if rate is None:
            return "no time or rate"
        return Observation(
            **common,
            kind="memory rate",
            dtype="fp32",
            sizes=(_STREAM_BYTES,),
            measured_s=_STREAM_BYTES / (rate * 1e9),
        )
    dtype = _DTYPES.get(row.get("dtype") or "")
    if kernel == "attention" and not row.get("dtype"):
        return "configuration not stated"
    if dtype is None:
        return "unknown dtype"
    if kernel == "gemm":
        return _matmul(row, common, dtype)
    if kernel == "conv2d":
        return _convolution(row, common, dtype)
    if kernel == "attention":
        return _attention(row, common, dtype)
    if kernel in _PASSES:
        return _pass(row, common, dtype)
    return "unknown kernel"


def _matmul(row: Mapping[str, Any], common: dict[str, Any], dtype: str) -> Observation | str:
    m, n, k = (_number(row, name) for name in "mnk")
    if m is None or n is None or k is None:
        return "configuration not stated"
    batch = _number(row, "batch") or 1.0
    measured_s = _seconds(row, 2.0 * m * n * k * batch)
    if measured_s is None:
        return "no time or rate"
    suspect = None
    if common["prefix"] == "AIC" and common["device"].silicon == "gb100" and m >= 8192:
        achieved = 2.0 * m * n * k * batch / measured_s
        if achieved < 0.40 * common["device"].peak_flop_per_s[dtype]:
            suspect = "one of 18 large products near half the rate of their neighbours"
    if common["prefix"] == "AIC" and dtype == "fp8":
        suspect = "carries about 50 us a call, probably quantisation of the input"
    return Observation(
        **common,
        kind="matmul",
        dtype=dtype,
        sizes=(m, n, k, batch),
        measured_s=measured_s,
        burst=common["prefix"] in BURST_SOURCES,
        suspect=suspect,
    )


def _convolution(row: Mapping[str, Any], common: dict[str, Any], dtype: str) -> Observation | str:
    batch = _number(row, "batch")
    printed = _CONVOLUTION.search(row.get("notes") or "")
    direction = _CONVOLUTION_DIRECTIONS.get(row.get("direction") or "")
    if batch is None or printed is None or direction is None:
        return "configuration not stated"
    width, height, inputs, outputs, kernel_w, kernel_h, pad_w, pad_h, stride_w, stride_h = (
        float(text) for text in printed.groups()[:10]
    )
    groups = float(printed.group(11) or 1)
    window = (kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w)
    sizes = (batch, height, width, inputs, outputs, *window, groups)
    try:
        flop = float(Convolution(*sizes).flop)
    except ConfigError:
        return "configuration not stated"
    measured_s = _seconds(row, flop)
    if measured_s is None:
        return "no time or rate"
    return Observation(
        **common,
        kind="conv",
        dtype=dtype,
        sizes=sizes,
        measured_s=measured_s,
        direction=direction,
    )


def _attention(row: Mapping[str, Any], common: dict[str, Any], dtype: str) -> Observation | str:
    sizes = [_number(row, name) for name in ("batch", "heads", "seq", "head_dim")]
    direction = {"fwd": "forward", "bwd": "backward", "fwd+bwd": "both"}.get(row["direction"])
    causal = {"yes": 0.5, "no": 1.0}.get(row.get("causal") or "")
    if any(size is None for size in sizes) or direction is None or causal is None:
        return "configuration not stated"
    batch, heads, seq, head_dim = (float(size or 0.0) for size in sizes)
    kv_heads = _number(row, "kv_heads") or heads
    passes = {"forward": 1.0, "backward": 2.5, "both": 3.5}[direction]
    measured_s = _seconds(row, passes * 4.0 * batch * heads * seq * seq * head_dim * causal)
    if measured_s is None:
        return "no time or rate"
    unfused = "standard" in row["library"].lower()
    return Observation(
        **common,
        kind="unfused attention" if unfused else "attention",
        dtype=dtype,
        sizes=(batch, heads, kv_heads, seq, seq, head_dim, causal),
        measured_s=measured_s,
        direction=direction,
        implementation=_IMPLEMENTATIONS.get(row["library"], "current"),
        writes_cache=common["prefix"] in CACHE_SOURCES,
    )


def _pass(row: Mapping[str, Any], common: dict[str, Any], dtype: str) -> Observation | str:
    elements = (_number(row, "m") or 0.0) * (_number(row, "n") or 1.0)
    measured_ms = _number(row, "time_ms")
    rate = _GIGA_ELEMENTS.search(row.get("notes") or "")
    if not elements or (measured_ms is None and rate is None):
        return "no time or rate"
    measured_s = measured_ms * 1e-3 if measured_ms else 0.0
    if rate is not None and measured_ms is None:
        measured_s = elements / (float(rate.group(1)) * 1e9)
    return Observation(
        **common,
        kind="pass",
        dtype=dtype,
        sizes=(_PASS_BYTES_PER_ELEMENT * elements,),
        measured_s=measured_s,
    )


def _seconds(row: Mapping[str, Any], flop: float) -> float | None:
    measured_ms, rate = _number(row, "time_ms"), _number(row, "tflops")
    if measured_ms is not None:
        return measured_ms * 1e-3
    return flop / (rate * 1e12) if rate is not None else None
