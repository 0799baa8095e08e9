"""Results on stdout and in files: JSON objects, and tables that are plain when piped."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hwmodels.errors import ConfigError
from search.cli.parse import Output

MAX_JSON_BYTES = 64 << 20

GIB = 1024.0**3


def refuse_existing(path: str | None, *, flag: str, force: bool) -> None:
    """Check before any work whether a file may be written.

    Raises:
        ConfigError: It exists and `--force` was not given, or it cannot be written.
    """
    if path is None or path == "-":
        return
    target = Path(path)
    try:
        exists, is_folder = os.path.lexists(target), target.is_dir()
        parent_is_folder = target.parent.is_dir()
    except (OSError, ValueError) as problem:
        raise ConfigError(f"cannot write {path[:80]!r}: {problem}", field=flag) from None
    if is_folder or not parent_is_folder or not path:
        raise ConfigError(
            f"cannot write {path[:200]!r}: "
            + ("it is a folder" if is_folder else "its folder does not exist"),
            field=flag,
            value=path[:200],
        )
    if exists and not force:
        raise ConfigError(f"{path} exists", field=flag, value=path, hint="--force overwrites it")


def write_text(path: str, text: str, *, flag: str) -> None:
    """Write a whole file, or leave what was there.

    Raises:
        ConfigError: The system refuses.
    """
    target = Path(path)
    try:
        if target.is_symlink() or (target.exists() and not target.is_file()):
            # a link keeps pointing where it did, and a device or pipe takes what it is given
            target.write_text(text, encoding="utf-8")
            return
        partial = target.with_name(f"{target.name}.part")
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, target)
    except (OSError, ValueError) as problem:
        raise ConfigError(f"cannot write {path}: {problem}", field=flag, value=path) from None


def read_json(path: str) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        ConfigError: Not there, not text, too large, not JSON, or not an object.
    """
    try:
        with open(path, "rb") as stream:
            raw = stream.read(MAX_JSON_BYTES + 1)
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise ConfigError(f"cannot be read: {reason}", file=path[:200]) from None
    if len(raw) > MAX_JSON_BYTES:
        raise ConfigError("the file is larger than 64 MiB", file=path)
    try:
        data = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise ConfigError("the file is not text (UTF-8)", file=path) from None
    except json.JSONDecodeError as problem:
        raise ConfigError(
            f"the file is not JSON: {problem.msg}", file=path, line=problem.lineno
        ) from None
    except (ValueError, RecursionError) as problem:
        raise ConfigError(f"the file is not JSON: {problem}", file=path) from None
    if not isinstance(data, dict):
        raise ConfigError("the file holds no JSON object", file=path)
    return data


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def deliver(data: Mapping[str, Any], output: Output, text: str) -> None:
    """Print a result, as JSON or as text, and write it where asked; warnings go to stderr."""
    body = json.dumps(data, allow_nan=False)
    if output.output is not None and output.output != "-":
        write_text(output.output, body + "\n", flag="--output")
    if output.json or output.output == "-":
        print(body)
    else:
        print(text)
    if not output.quiet:
        for warning in data.get("warnings", ()):
            print(f"warning: {warning}", file=sys.stderr)


def columns(headers: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> str:
    """A table: drawn by rich on a terminal, aligned plain text when piped or under NO_COLOR."""
    cells = [[str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        return _drawn(headers, cells, title)
    widths = [max(len(cell) for cell in column) for column in zip(headers, *cells, strict=True)]
    numeric = [all(_is_number(row[i]) for row in cells) for i in range(len(headers))]
    lines = [title] if title else []
    for row in (list(headers), *cells):
        parts = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def gib(amount_bytes: float) -> str:
    """Bytes as GiB with two decimals."""
    return f"{amount_bytes / GIB:.2f}"


def seconds(time_s: float) -> str:
    """A step time in the unit that suits it."""
    if time_s < 1.0:
        return f"{time_s * 1e3:.4g} ms"
    return f"{time_s:.4g} s"


def _is_number(cell: str) -> bool:
    return cell.strip()[:1].isdigit() or cell.strip()[:1] in "-+" or not cell.strip()


def _drawn(headers: Sequence[str], cells: Sequence[Sequence[str]], title: str) -> str:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for i, header in enumerate(headers):
        right = all(_is_number(row[i]) for row in cells)
        table.add_column(header, justify="right" if right else "left")
    for row in cells:
        table.add_row(*row)
    console = Console()
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip("\n")
