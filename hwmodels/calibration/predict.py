"""What the kernel models say about measured rows, in the conditions in which they were measured.

Conditions belong to the row, not to the chip: a kernel timed alone runs at a burst clock, and a
serving stack's attention also copies keys and values (a read and a write of both) into its
cache.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hwmodels.calibration.rows import Device, Observation
from hwmodels.kernels import attention, conv, matmul, pointwise
from hwmodels.kernels.parameters import columns_with_defaults
from hwmodels.table import FloatArray, HardwareTable, IntArray

_BOTH = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class Group:
    """Observations that one array call predicts.

    Args:
        first: Any of them; device, class, dtype and conditions are shared.
        index: (n,) their places in the sequence that was grouped.
        sizes: (fields, n) their sizes.
        call_s: What an empty call costs where whole calls were timed.
    """

    first: Observation
    index: IntArray
    sizes: FloatArray
    call_s: float = 0.0


def grouped(observations: Sequence[Observation]) -> list[Group]:
    """The observations by device, class, dtype, direction and conditions."""
    places: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, o in enumerate(observations):
        key = (o.device.hardware, o.kind, o.dtype, o.direction, o.implementation)
        places[(*key, o.burst, o.writes_cache, o.call_s)].append(i)
    return [
        Group(
            first=observations[index[0]],
            index=np.array(index, dtype=np.int64),
            sizes=np.array([observations[i].sizes for i in index], dtype=float).T,
            call_s=observations[index[0]].call_s,
        )
        for index in places.values()
    ]


def hardware(device: Device, parameters: Mapping[str, float]) -> HardwareTable:
    """One hardware row: the device with these kernel parameters."""
    filled = columns_with_defaults(parameters, device.peak_flop_per_s)
    chip = {
        "memory_bytes_per_s": device.memory_bytes_per_s,
        "num_cores": float(device.num_cores),
        **{f"peak_flop_per_s.{dtype}": peak for dtype, peak in device.peak_flop_per_s.items()},
        **{f"kernel.{name}": value for name, value in filled.items()},
    }
    if device.vector_flop_per_s is not None:
        chip["vector_flop_per_s"] = device.vector_flop_per_s
    return HardwareTable(
        names=(device.chip,),
        num_chips=1,
        chip={name: np.array([value], dtype=float) for name, value in chip.items()},
        level_kinds=(),
        level_size=np.zeros((1, 0), dtype=np.int64),
        level={},
        level_reduces=(),
        chips_per_node=np.ones(1, dtype=np.int64),
    )


def seconds(groups: Sequence[Group], parameters: Mapping[str, float]) -> FloatArray:
    """(n,) predicted seconds of the grouped observations, all with the same parameters."""
    out = np.zeros(sum(group.index.size for group in groups))
    for group in groups:
        out[group.index] = _group_seconds(group, parameters) + group.call_s
    return out


def _group_seconds(group: Group, parameters: Mapping[str, float]) -> FloatArray:
    row, sizes = group.first, group.sizes
    hw = hardware(row.device, parameters)
    if row.kind == "matmul":
        m, n, k, batch = sizes
        return _only(matmul.seconds(hw, m, n, k, batch, dtype=row.dtype, burst=row.burst))
    if row.kind == "conv":
        shape = conv.Convolution(*sizes)
        return _only(conv.seconds(hw, shape, dtype=row.dtype, direction=conv_direction(row)))
    if row.kind in ("pass", "memory rate"):
        return _only(pointwise.seconds(hw, sizes[0]))
    directions = _BOTH if row.direction == "both" else (row.direction,)
    total = np.zeros(group.index.size)
    batch, heads, kv_heads, seq_q, seq_kv, head_dim, fraction = sizes
    query = (batch, heads, kv_heads, seq_q, seq_kv, head_dim)
    for direction in directions:
        way: attention.Direction = "forward" if direction == "forward" else "backward"
        if row.kind == "unfused attention":
            total += _only(attention.unfused_seconds(hw, *query, dtype=row.dtype, direction=way))
        else:
            fused = attention.seconds(
                hw,
                *query,
                pairs_fraction=fraction,
                dtype=row.dtype,
                direction=way,
                implementation=row.implementation,
            )
            total += _only(fused)
    if row.writes_cache:
        copies = parameters["attention_cache_passes"]
        copied = copies * 4.0 * batch * seq_kv * kv_heads * head_dim  # keys and values, 2 B each
        total += copied / (row.device.memory_bytes_per_s * parameters["memory_efficiency"])
    return total


def conv_direction(o: Observation) -> conv.Direction:
    """The direction of a convolution's row, as its model names it."""
    return next(known for known in conv.DIRECTIONS if known == o.direction)


def _only(of_rows: FloatArray) -> FloatArray:
    """(n,) the values of the single hardware row."""
    row: FloatArray = of_rows[0]
    return row
