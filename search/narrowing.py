"""What a user lets a plan space keep: `--fix tp=8 --allow zero=0,1 --max-tp-span node`.

Narrowing only ever removes plans. What cannot be meant (an unknown axis, a value no plan can
have, two statements that contradict each other) is a `ConfigError`; a well-formed narrowing that
happens to leave no plan is for the search to report as infeasible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from dse.plan import AXES, OPTIONS, IntArray
from hwmodels.errors import ConfigError

NARROWED = (*AXES, "num_microbatches")
"""Axes that may be narrowed: those of a plan, and the count that follows from three of them."""

LARGEST = 1 << 30
"""Degrees and batches above this are typing errors, not plans."""


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The values that each narrowed axis may take.

    Args:
        allowed: Axis to its allowed values as integers (word axes as positions in `OPTIONS`),
            ascending.
        chips_per_tp_span: tp must divide this many neighbouring chips; 0 for no limit.
        headroom_bytes: Memory to leave free on every device, beyond the stack's reserve.
    """

    allowed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    chips_per_tp_span: int = 0
    headroom_bytes: float = 0.0

    def keeps(self, axis: str, values: IntArray) -> NDArray[np.bool_]:
        """(n,) which of `values` the narrowing of one axis lets pass."""
        keep = np.ones(len(values), dtype=bool)
        if axis in self.allowed:
            keep &= np.isin(values, self.allowed[axis])
        if axis == "tp" and self.chips_per_tp_span:
            keep &= self.chips_per_tp_span % values == 0
        return keep


def narrowing(
    fix: Mapping[str, object] | None = None,
    allow: Mapping[str, Sequence[object]] | None = None,
    *,
    tp_span: str | None = None,
    chips_per_node: int = 0,
    headroom_bytes: float = 0.0,
    global_batch_size: int | None = None,
) -> Narrowing:
    """Check what a user asked for and bring it to integers.

    Args:
        fix: Axis to its one value.
        allow: Axis to its allowed values.
        tp_span: `"node"` keeps every tp group within one host.
        chips_per_node: Devices of a host, read where `tp_span` is given.
        headroom_bytes: Memory to leave free on every device.
        global_batch_size: The batch of the job, which no narrowing may contradict.

    Raises:
        ConfigError: An unknown axis, an impossible value, or statements that contradict each
            other.
    """
    statements: list[tuple[str, tuple[int, ...]]] = []
    for axis, value in (fix or {}).items():
        statements.append((axis, (axis_value(axis, value),)))
    for axis, values in (allow or {}).items():
        if isinstance(values, str) or not values:
            raise ConfigError(
                f"allow needs a list of values for {axis}", field=axis, value=str(values)
            )
        statements.append((axis, tuple(axis_value(axis, value) for value in values)))
    if headroom_bytes < 0 or not np.isfinite(headroom_bytes):
        raise ConfigError(
            "headroom cannot be negative or infinite", field="headroom", value=headroom_bytes
        )
    span = 0
    if tp_span is not None:
        if tp_span != "node":
            raise ConfigError(
                f"max-tp-span = {tp_span!r} is not allowed",
                field="max_tp_span",
                value=tp_span,
                allowed=["node"],
            )
        span = chips_per_node
    allowed = _intersect(statements)
    _refuse_contradictions(allowed, span, global_batch_size)
    return Narrowing(allowed, span, headroom_bytes)


def axis_value(axis: str, value: object) -> int:
    """One value of an axis as an integer; word axes become positions in `OPTIONS`.

    Raises:
        ConfigError: The axis is unknown, or no plan can have the value.
    """
    if axis not in NARROWED:
        near = get_close_matches(axis, NARROWED, n=1)
        raise ConfigError(
            f"no plan axis is called {axis!r}",
            field=axis,
            value=str(value),
            allowed=list(NARROWED),
            hint=f"did you mean {near[0]!r}?" if near else None,
        )
    if axis in OPTIONS:
        words = OPTIONS[axis]
        if value in words:
            return words.index(str(value))
        near = get_close_matches(str(value), words, n=1)
        raise _impossible(axis, value, list(words), f"did you mean {near[0]!r}?" if near else None)
    if axis == "sequence_parallel":
        flags = {"true": 1, "false": 0}
        if str(value).lower() not in flags:
            raise _impossible(axis, value, ["true", "false"])
        return flags[str(value).lower()]
    least = 0 if axis in ("zero", "first_stage_layers", "last_stage_layers") else 1
    most = 3 if axis == "zero" else LARGEST
    described = "0, 1, 2, 3" if axis == "zero" else f"an integer from {least}"
    number = _integer(value)
    if number is None or not least <= number <= most:
        raise _impossible(axis, value, described)
    return number


def parse_pairs(flag: str, texts: Iterable[str]) -> list[tuple[str, str]]:
    """`["tp=8", "zero=0,1"]` as pairs.

    Raises:
        ConfigError: A text without `=`, or with nothing on one of its sides.
    """
    pairs = []
    for text in texts:
        axis, equals, value = text.partition("=")
        axis = axis.strip().replace("-", "_")
        if not equals or not axis or not value.strip():
            raise ConfigError(
                f"--{flag} {text!r} is not of the form AXIS=VALUE",
                field=f"--{flag}",
                value=text,
                allowed=list(NARROWED),
            )
        pairs.append((axis, value.strip()))
    return pairs


def from_flags(
    fix: Sequence[str], allow: Sequence[str]
) -> tuple[dict[str, object], dict[str, Sequence[object]]]:
    """The `fix` and `allow` of `narrowing` from repeated command-line flags.

    Raises:
        ConfigError: A malformed text, or the same axis twice with different values.
    """
    fixed: dict[str, object] = {}
    for axis, value in parse_pairs("fix", fix):
        if axis in fixed and fixed[axis] != value:
            raise ConfigError(
                f"--fix {axis}={value} contradicts --fix {axis}={fixed[axis]}",
                field=axis,
                value=value,
            )
        fixed[axis] = value
    allowed: dict[str, Sequence[object]] = {}
    for axis, value in parse_pairs("allow", allow):
        values = [part.strip() for part in value.split(",")]
        if axis in allowed:
            values = [part for part in values if part in allowed[axis]]
            if not values:
                raise ConfigError(
                    f"two --allow for {axis} have no value in common", field=axis, value=value
                )
        allowed[axis] = values
    return fixed, allowed


def _integer(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | str | np.integer):
        return None
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def _impossible(axis: str, value: object, allowed: object, hint: str | None = None) -> ConfigError:
    return ConfigError(
        f"{axis} = {str(value)!r} is not allowed",
        field=axis,
        value=str(value),
        allowed=allowed,
        hint=hint,
    )


def _intersect(statements: Sequence[tuple[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    allowed: dict[str, tuple[int, ...]] = {}
    for axis, values in statements:
        left = set(values) & set(allowed.get(axis, values))
        if not left:
            raise ConfigError(
                f"the narrowing contradicts itself: no value of {axis} is both fixed and allowed",
                field=axis,
                value=[_word(axis, value) for value in values],
                allowed=[_word(axis, value) for value in allowed[axis]],
            )
        allowed[axis] = tuple(sorted(left))
    return allowed


def _refuse_contradictions(
    allowed: Mapping[str, tuple[int, ...]], span: int, global_batch_size: int | None
) -> None:
    """Statements that are each possible and cannot hold together whatever the model and the
    chips.
    """

    def only(axis: str) -> set[int]:
        return set(allowed.get(axis, ()))

    interleaved = OPTIONS["schedule"].index("interleaved")
    both: str | None = None
    if only("schedule") == {interleaved} and (only("vpp") == {1} or only("pp") == {1}):
        both = "schedule=interleaved needs vpp > 1 and pp > 1"
    elif only("schedule") and interleaved not in only("schedule") and only("vpp") - {1}:
        both = None if 1 in only("vpp") else "vpp > 1 needs schedule=interleaved"
    elif only("sequence_parallel") == {1} and only("tp") == {1}:
        both = "sequence_parallel=true needs tp > 1"
    elif span and only("tp") and all(span % tp for tp in only("tp")):
        both = f"no allowed tp keeps its groups within the {span} chips of a node"
    elif global_batch_size is not None and only("global_batch_size") - {global_batch_size}:
        both = f"the job's global_batch_size is {global_batch_size}"
        if global_batch_size in only("global_batch_size"):
            both = None
    if both is not None:
        raise ConfigError(f"the narrowing contradicts itself: {both}", field="narrowing")


def _word(axis: str, value: int) -> object:
    return OPTIONS[axis][value] if axis in OPTIONS else value
