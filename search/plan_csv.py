"""Every plan of a space as CSV, so that anyone can check a search by brute force."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import numpy as np

from dse.plan import AXES, OPTIONS
from hwmodels.errors import ConfigError
from search.exact import Verdict

_PLACE = AXES.index("global_batch_size") + 1
COLUMNS = (
    *AXES[:_PLACE],
    "num_microbatches",
    *AXES[_PLACE:],
    "fits",
    "step_time_s",
    "peak_memory_bytes",
)


class PlanCsv:
    """A CSV file that appears only when it is complete.

    Args:
        path: The file.
        overwrite: Whether it may exist.

    Raises:
        ConfigError: It exists, or cannot be written.
    """

    def __init__(self, path: str | Path, *, overwrite: bool = False) -> None:
        self.path = Path(path)
        self._partial = self.path.with_name(self.path.name + ".part")
        try:
            if os.path.lexists(self.path) and not overwrite:
                raise ConfigError(f"{path} exists", field="all_csv", value=str(path))
            self._stream: TextIO = open(self._partial, "w", encoding="utf-8", newline="")  # noqa: SIM115 - closed by __exit__
        except (OSError, ValueError) as problem:
            raise ConfigError(
                f"cannot write {path}: {problem}", field="all_csv", value=str(path)
            ) from None
        self._stream.write(",".join(COLUMNS) + "\n")

    def __enter__(self) -> PlanCsv:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()
        if kind is None:
            os.replace(self._partial, self.path)
        else:
            self._partial.unlink()

    def write(self, verdict: Verdict) -> None:
        """Append one chunk; a plan that does not fit has an empty time."""
        table = verdict.table
        cells: dict[str, Any] = {}
        for axis in AXES:
            words = np.array([_word(axis, int(value)) for value in table.values[axis]])
            cells[axis] = words[table.codes[axis]].tolist()
        per_step = table.column("micro_batch_size") * table.column("dp")
        cells["num_microbatches"] = map(
            str, (table.column("global_batch_size") // per_step).tolist()
        )
        cells["fits"] = np.where(verdict.fits, "true", "false").tolist()
        cells["step_time_s"] = [
            repr(time_s) if fits else ""
            for time_s, fits in zip(verdict.time_s.tolist(), verdict.fits.tolist(), strict=True)
        ]
        cells["peak_memory_bytes"] = map(repr, verdict.memory_bytes.tolist())
        rows = zip(*(cells[column] for column in COLUMNS), strict=True)
        self._stream.write("\n".join(map(",".join, rows)))
        self._stream.write("\n")


def _word(axis: str, value: int) -> str:
    if axis == "sequence_parallel":
        return "true" if value else "false"
    return OPTIONS[axis][value] if axis in OPTIONS else str(value)
