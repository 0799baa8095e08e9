"""Everything that can go wrong, named by who must act.

DseError
├── ConfigError        the user's file, flag or argument
│   └── UnitError      a quantity without a unit, or with the wrong one
├── UnsupportedError   known to us and not modelled
└── InfeasibleError    well formed, but nothing fits
"""

from __future__ import annotations

import math
from typing import Any


class DseError(Exception):
    """Root of every error that this project raises on purpose."""

    def as_dict(self) -> dict[str, Any]:
        """The JSON body that stands under the key `error` or `infeasible`."""
        return {"type": type(self).__name__, "message": str(self)}


class ConfigError(DseError):
    """A file, flag or argument of the user's is wrong.

    Args:
        message: One sentence saying what is wrong.
        file: The file it stands in, if any.
        line: Its line, counted from 1.
        field: The dotted name of the field, or the flag.
        value: What was given.
        allowed: What may be given.
        hint: A suggestion, such as the nearest known name.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        field: str | None = None,
        value: object = None,
        allowed: object = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.line = line
        self.field = field
        self.value = value
        self.allowed = allowed
        self.hint = hint

    def __str__(self) -> str:
        where = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        text = f"{where}: {self.message}" if where else self.message
        if self.allowed is not None:
            text += f" (allowed: {_listed(self.allowed)})"
        if self.hint:
            text += f"; {self.hint}"
        return text

    def as_dict(self) -> dict[str, Any]:
        """The JSON body: type, message, file, line, field, value, allowed, hint."""
        return {
            "type": type(self).__name__,
            "message": str(self),
            "file": self.file,
            "line": self.line,
            "field": self.field,
            "value": _plain(self.value),
            "allowed": _plain(self.allowed),
            "hint": self.hint,
        }


class UnitError(ConfigError):
    """A quantity has no unit, an unknown unit, or a unit of another dimension."""


class UnsupportedError(ConfigError):
    """The case is known and not modelled; it is refused by name, never guessed."""


class InfeasibleError(DseError):
    """The request is well formed, and nothing fits.

    Args:
        reason: One sentence saying what does not fit.
        stage: The pipeline stage that is shortest of memory, counted from 0.
        needed_bytes_per_device: What the least demanding plan needs on that stage.
        available_bytes_per_device: What a device offers after the reserve.
    """

    def __init__(
        self,
        reason: str,
        *,
        stage: int | None = None,
        needed_bytes_per_device: float | None = None,
        available_bytes_per_device: float | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.stage = stage
        self.needed_bytes_per_device = needed_bytes_per_device
        self.available_bytes_per_device = available_bytes_per_device

    @property
    def short_by_bytes(self) -> float | None:
        """How many bytes a device lacks, or None where memory is not the reason."""
        if self.needed_bytes_per_device is None or self.available_bytes_per_device is None:
            return None
        return max(0.0, self.needed_bytes_per_device - self.available_bytes_per_device)

    def as_dict(self) -> dict[str, Any]:
        """The JSON body that stands under the key `infeasible`."""
        return {
            "reason": self.reason,
            "stage": self.stage,
            "needed_bytes_per_device": self.needed_bytes_per_device,
            "available_bytes_per_device": self.available_bytes_per_device,
            "short_by_bytes": self.short_by_bytes,
        }


def _listed(allowed: object) -> str:
    if isinstance(allowed, list | tuple | set | frozenset):
        return ", ".join(str(item) for item in allowed)
    return str(allowed)


def _plain(value: object) -> Any:
    """What JSON can hold; infinities and NaN as words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return str(value)
