"""Rows of published training runs, read from CSV and checked.

A row says what ran (model, chips, layout, batch) and how fast it was. An empty or absent cell was
not published. Columns are those of the bundled `published-training.csv`; a file with the columns
of the convolutional table is told apart by them. Numbers that do not parse are named by file,
line and field.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path

from hwmodels.errors import ConfigError

REQUIRED = ("id", "source", "model", "hardware")
MEASURED = ("step_time_s", "tokens_per_s_per_device")
CNN_MEASURED = ("images_per_s", "images_per_s_per_device")
CNN_COLUMNS = (
    "framework",
    "strategy",
    "image_size",
    *CNN_MEASURED,
    "scaling_efficiency_pct",
    "time_to_train_min",
)
"""Columns of the convolutional table that the table of training runs has not."""
PROVENANCE = ("source_location", "url", "notes", "derived_cols", "verified", "flops_convention")
RECALLED = "memory"
_INTEGERS = (
    "year",
    "layers",
    "hidden",
    "ffn",
    "heads",
    "kv_heads",
    "vocab",
    "seq",
    "num_devices",
    "devices_per_node",
    "tp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "dp",
    "micro_batch",
    "global_batch",
)
_FLOATS = (
    "params_b",
    "inter_link_gbit_per_s_per_device",
    "step_time_s",
    "tokens_per_s_per_device",
    "tflops_per_device_model",
    "mfu_pct",
    "peak_mem_gb",
    "tflops_reported",
)
_WORDS = ("intra_link", "precision", "fsdp_or_zero", "seq_parallel", "recompute")
TRAINING_COLUMNS = (*REQUIRED, *_INTEGERS, *_FLOATS, *_WORDS, *PROVENANCE)


@dataclass(frozen=True, slots=True)
class Row:
    """One published training run; None or an empty text where nothing was printed.

    Rates and sizes carry the units of their column names: `inter_link_gbit_per_s_per_device` is
    the nominal share of one device, one direction; `tokens_per_s_per_device` counts all tokens of
    the global batch; `convolutional` marks a row of the other table.
    """

    id: str
    source: str
    model: str
    hardware: str
    line: int
    convolutional: bool = False
    year: int | None = None
    layers: int | None = None
    hidden: int | None = None
    ffn: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    vocab: int | None = None
    seq: int | None = None
    num_devices: int | None = None
    devices_per_node: int | None = None
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    cp: int | None = None
    ep: int | None = None
    dp: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    inter_link_gbit_per_s_per_device: float | None = None
    step_time_s: float | None = None
    tokens_per_s_per_device: float | None = None
    precision: str = ""
    fsdp_or_zero: str = ""
    seq_parallel: str = ""
    recompute: str = ""
    source_location: str = ""
    notes: str = ""
    verified: str = ""


_KEPT = {field.name for field in fields(Row)}


def bundled_rows() -> tuple[Row, ...]:
    """The rows that come with the package."""
    file = resources.files("dse.validate").joinpath("data", "published-training.csv")
    with resources.as_file(file) as path:
        return read_rows(path)[0]


def read_rows(path: str | Path) -> tuple[tuple[Row, ...], tuple[str, ...]]:
    """The rows of a CSV file, and warnings about its columns.

    Args:
        path: A UTF-8 CSV file with a header line.

    Raises:
        ConfigError: The file cannot be read, a required column is missing, an id is missing or
            given twice, or a number does not parse.
    """
    file = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{file} cannot be read: {problem}", file=file) from None
    reader = csv.DictReader(text.splitlines())
    header = tuple(name.strip() for name in reader.fieldnames or ())
    reader.fieldnames = list(header)
    warnings = _check_header(header, file)
    convolutional = any(name in header for name in CNN_COLUMNS)
    seen: dict[str, int] = {}
    rows = []
    for cells in reader:
        row = _row(cells, file=file, line=reader.line_num, convolutional=convolutional)
        if row.id in seen:
            raise ConfigError(
                f"id {row.id!r} stands on line {seen[row.id]} already",
                file=file,
                line=row.line,
                field="id",
                value=row.id,
            )
        seen[row.id] = row.line
        rows.append(row)
    return tuple(rows), warnings


def _check_header(header: tuple[str, ...], file: str) -> tuple[str, ...]:
    if not header:
        raise ConfigError("the file is empty", file=file, allowed=TRAINING_COLUMNS)
    missing = [name for name in REQUIRED if name not in header]
    measured = (*MEASURED, *CNN_MEASURED)
    if missing or not any(name in header for name in measured):
        raise ConfigError(
            f"missing column {', '.join(missing) or ' or '.join(measured)}",
            file=file,
            line=1,
            field=missing[0] if missing else MEASURED[0],
            allowed=TRAINING_COLUMNS,
        )
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise ConfigError(f"column {twice[0]} stands twice", file=file, line=1, field=twice[0])
    known = {*TRAINING_COLUMNS, *CNN_COLUMNS}
    return tuple(f"{file}: unknown column {name!r} is not read" for name in header
                 if name not in known)  # fmt: skip


def _row(cells: Mapping[str, str | None], *, file: str, line: int, convolutional: bool) -> Row:
    values: dict[str, object] = {"line": line, "convolutional": convolutional}
    for name, cell in cells.items():
        text = (cell or "").strip() if name is not None else ""
        if name not in _KEPT or not text:
            continue
        if name in _INTEGERS:
            values[name] = int(_number(text, file=file, line=line, field=name, whole=True))
        elif name in _FLOATS:
            values[name] = _number(text, file=file, line=line, field=name, whole=False)
        else:
            values[name] = text
    for name in REQUIRED:
        if not values.get(name):
            raise ConfigError(f"{name} is empty", file=file, line=line, field=name)
    return Row(**values)  # type: ignore[arg-type]


def _number(text: str, *, file: str, line: int, field: str, whole: bool) -> float:
    allowed = "a whole number from 1" if whole else "a positive number"
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0 or (whole and value != int(value)):
        raise ConfigError(
            f"{field} is {text[:40]!r}",
            file=file,
            line=line,
            field=field,
            value=text[:40],
            allowed=allowed,
        )
    return value


def only(rows: Iterable[Row], ids: Iterable[str]) -> tuple[Row, ...]:
    """The rows with the given ids, in their order."""
    wanted = set(ids)
    return tuple(row for row in rows if row.id in wanted)
