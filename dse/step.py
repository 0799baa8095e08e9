"""The evaluator: what one training step costs, for many plans on many machines at once.

`StepModel` binds a workload, hardware rows and a software stack. Costs that depend on a few plan
axes live in three tables over distinct keys (`dse/tables.py`, `dse/sync`), worked out once and
kept; a plan gathers its rows and combines them by the closed forms of `dse/schedule.py`. A scalar
answer is the same call with one plan and one machine.

    step = compute + exposed tp + cp + ep + pp + dp + bubble + optimizer + host      (in this
    order)

is the ledger of one device of the stage that fixes the pipeline's time; the total *is* that sum.

Shapes: `H` hardware rows, `P` plans; seconds (H, P), bytes (P,).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from dse.block import Pricing
from dse.keys import KeyedTable
from dse.memory import Tables, peak_bytes
from dse.plan import IntArray, PlanTable
from dse.schedule import (
    FIRST,
    LAST,
    MIDDLE,
    SCHEDULE_AXES,
    ScheduleTable,
    Stages,
    pipe_time,
    schedule_table,
)
from dse.stacks import Stack
from dse.sync import SYNC_AXES, sync_table
from dse.tables import ENDS_AXES, LAYER_AXES, EndsTable, LayerTable, ends_table, layer_table
from dse.workload import Workload
from hwmodels.table import FloatArray, HardwareTable

PARTS = ("compute", "tp", "cp", "ep", "pp", "dp", "bubble", "optimizer", "host")
"""The ledger's parts in the order in which they are added up."""


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Costs of P plans on H machines.

    Args:
        step_time_s: (H, P), the sum of `parts` in order.
        parts: Each of `PARTS` to (H, P) seconds.
        critical: (H, P) kind of stage that fixes the time: 0 first, 1 middle, 2 last.
        peak_memory_bytes: (P,) of the fullest stage, without reserve.
    """

    step_time_s: FloatArray
    parts: Mapping[str, FloatArray]
    critical: IntArray
    peak_memory_bytes: FloatArray


@dataclass(frozen=True, slots=True)
class MemoryColumns:
    """Peak memory of P plans: (P,) bytes of the fullest stage, and which rank that is."""

    peak_bytes: FloatArray
    peak_stage: IntArray


class StepModel:
    """Prices plans of one workload on H hardware rows under one stack.

    Args:
        workload: Model, sequence length and precision.
        hardware: H rows of the same chip count.
        stack: What the framework overlaps, fuses and reserves.
    """

    def __init__(self, workload: Workload, hardware: HardwareTable, stack: Stack) -> None:
        self.workload = workload
        self.hardware = hardware
        self.stack = stack
        self.pricing = Pricing(hardware, workload.config, stack, workload.precision)
        seq_length = workload.seq_length
        self._layer = KeyedTable(
            LAYER_AXES, lambda keys: layer_table(self.pricing, seq_length, keys), free=True
        )
        self._ends = KeyedTable(
            ENDS_AXES, lambda keys: ends_table(self.pricing, seq_length, keys), free=True
        )
        self._sync = KeyedTable(SYNC_AXES, lambda keys: sync_table(self.pricing, seq_length, keys))
        self._schedule = KeyedTable(SCHEDULE_AXES, schedule_table)
        self._last: tuple[PlanTable, Tables] | None = None
        self._last_memory: tuple[PlanTable, MemoryColumns] | None = None

    @property
    def reserve_bytes(self) -> FloatArray:
        """(H,) bytes of a device that tensors never get."""
        capacity = self.hardware.chip["memory_bytes"]
        reserved: FloatArray = self.stack.reserve_bytes + self.stack.reserve_fraction * capacity
        return reserved

    @property
    def usable_bytes(self) -> FloatArray:
        """(H,) bytes of a device that tensors may fill."""
        usable: FloatArray = self.hardware.chip["memory_bytes"] - self.reserve_bytes
        return usable

    def tables(self, plans: PlanTable) -> Tables:
        """The tables over distinct keys, and each plan's places in them."""
        if self._last is not None and self._last[0] is plans:
            return self._last[1]
        layer, at_layer = self._layer.lookup(plans)
        ends, at_ends = self._ends.lookup(plans)
        sync, at_sync = self._sync.lookup(plans)
        schedule, at_schedule = self._schedule.lookup(plans)
        found = Tables(layer, ends, sync, schedule, at_layer, at_ends, at_sync, at_schedule)
        self._last = (plans, found)
        return found

    def memory(self, plans: PlanTable) -> MemoryColumns:
        """Peak bytes of the fullest stage of each plan."""
        if self._last_memory is not None and self._last_memory[0] is plans:
            return self._last_memory[1]
        tables = self.tables(plans)
        peak, kind = peak_bytes(tables)
        last = tables.schedule.pp[tables.at_schedule].astype(np.int64) - 1
        rank = np.where(kind == FIRST, 0, np.where(kind == MIDDLE, np.minimum(1, last), last))
        found = MemoryColumns(peak, rank)
        self._last_memory = (plans, found)
        return found

    # Time ------------------------------------------------------------------------------------

    def bound_s(self, plans: PlanTable) -> FloatArray:
        """(H, P) a lower bound on the step time, from kernels of the layers alone.

        With F the layer's kernel seconds, L the stages' layers: every stage works m L F, and the
        pipeline takes at least (m + (p-1)/v) times its emptiest stage.
        """
        tables = self.tables(plans)
        schedule, at = tables.schedule, tables.at_schedule
        kernels_s = tables.layer.forward_s + tables.layer.backward_s
        per_layer = kernels_s[:, tables.at_layer]
        layers = tables.sync.layers
        fewest = layers.min(axis=0)[tables.at_sync]
        most = layers.max(axis=0)[tables.at_sync]
        m = schedule.num_microbatches[at]
        filled = (m + ((schedule.pp - 1) / schedule.vpp)[at]) * fewest
        bound: FloatArray = per_layer * np.maximum(m * most, filled)
        return bound

    def evaluate(self, plans: PlanTable) -> StepColumns:
        """Price every plan on every machine."""
        tables = self.tables(plans)
        sync, at_sync = tables.sync, tables.at_sync
        layer = _gathered(tables.layer, tables.at_layer)
        ends = _gathered(tables.ends, tables.at_ends)
        plan = _gathered(tables.schedule, tables.at_schedule)
        m, pp = plan["num_microbatches"], plan["pp"]

        ring_f, ring_b = self._ring(tables, plan["cp"], layer)
        messages_f = layer["forward_tp_s"] + layer["forward_ep_s"] + ring_f
        messages_b = layer["backward_tp_s"] + layer["backward_ep_s"] + ring_b
        busy_f = layer["forward_s"] + messages_f
        busy_b = layer["backward_s"] + messages_b
        layer_f = np.maximum(busy_f, layer["host_forward_s"])
        layer_b = np.maximum(busy_b, layer["host_backward_s"])

        hop = (
            sync.hop_start_s[:, at_sync] + sync.hop_s_per_byte[:, at_sync] * ends["boundary_bytes"]
        )
        sent = plan["vpp"] * (pp > 1)
        hop = hop * (1.0 - self.stack.overlap_p2p) * sent
        arrival = ends["arrival_tp_s"] * sent
        embedding_f = ends["embedding_forward_s"] + ends["embedding_forward_tp_s"]
        embedding_b = ends["embedding_backward_s"] + ends["embedding_backward_tp_s"]
        head_f = ends["head_forward_s"] + ends["head_forward_tp_s"]
        head_b = ends["head_backward_s"] + ends["head_backward_tp_s"]
        alone = pp == 1
        layers = sync.layers[:, at_sync]
        stages = Stages(
            first_f=layers[FIRST] * layer_f + hop + arrival + embedding_f + alone * head_f,
            first_b=layers[FIRST] * layer_b + hop + arrival + embedding_b + alone * head_b,
            middle_f=layers[MIDDLE] * layer_f + hop + arrival,
            middle_b=layers[MIDDLE] * layer_b + hop + arrival,
            last_f=layers[LAST] * layer_f + hop + arrival + head_f,
            last_b=layers[LAST] * layer_b + hop + arrival + head_b,
        )
        pipe = pipe_time(plan["schedule"], pp, plan["vpp"], plan["num_microbatches"], stages)

        critical = pipe.critical
        own_layers = np.choose(critical, [layers[FIRST], layers[MIDDLE], layers[LAST]])
        has_embedding = critical == FIRST
        has_head = (critical == LAST) | alone
        compute = own_layers * (layer["forward_s"] + layer["backward_s"])
        compute = compute + has_embedding * (
            ends["embedding_forward_s"] + ends["embedding_backward_s"]
        )
        compute = compute + has_head * (ends["head_forward_s"] + ends["head_backward_s"])
        tp = own_layers * (layer["forward_tp_s"] + layer["backward_tp_s"])
        tp = tp + has_embedding * (
            ends["embedding_forward_tp_s"] + ends["embedding_backward_tp_s"]
        )
        tp = tp + has_head * (ends["head_forward_tp_s"] + ends["head_backward_tp_s"])
        excess = own_layers * ((layer_f - busy_f) + (layer_b - busy_b))
        busy = np.choose(
            critical,
            [
                stages.first_f + stages.first_b,
                stages.middle_f + stages.middle_b,
                stages.last_f + stages.last_b,
            ],
        )
        parts = {
            "compute": m * compute,
            "tp": m * (tp + 2.0 * arrival) + sync.once_tp_s[:, at_sync],
            "cp": m * own_layers * (ring_f + ring_b),
            "ep": m * own_layers * (layer["forward_ep_s"] + layer["backward_ep_s"]),
            "pp": m * 2.0 * hop + sync.once_pp_s[:, at_sync],
            "dp": self._data_parallel(tables, plan, layer_f, layer_b, layers),
            "bubble": np.maximum(pipe.seconds - m * busy, 0.0),
            "optimizer": sync.optimizer_s[:, at_sync],
            "host": m * excess,
        }
        step = parts[PARTS[0]]
        for name in PARTS[1:]:
            step = step + parts[name]
        return StepColumns(step, parts, critical, self.memory(plans).peak_bytes)

    def _ring(
        self, tables: Tables, cp: FloatArray, layer: Mapping[str, FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """(H, P) exposed seconds of ring attention, forward and backward, of one layer.

        c - 1 messages of K and V, each beside one step of attention; backward sends K and V again
        and their gradients, twice the bytes. Recomputation repeats the forward's ring.
        """
        if np.all(cp == 1):
            nothing = np.zeros_like(layer["forward_s"])
            return nothing, nothing
        start = tables.sync.ring_start_s[:, tables.at_sync]
        rate = tables.sync.ring_s_per_byte[:, tables.at_sync]
        step_f = layer["core_forward_s"] / cp
        step_b = layer["core_backward_s"] / cp
        message = rate * layer["kv_bytes"]
        forward: FloatArray = (cp - 1) * np.maximum(0.0, start + message - step_f)
        backward: FloatArray = (cp - 1) * np.maximum(0.0, start + 2.0 * message - step_b)
        return forward, backward + layer["ring_repeats"] * forward

    def _data_parallel(
        self,
        tables: Tables,
        plan: Mapping[str, FloatArray],
        layer_f: FloatArray,
        layer_b: FloatArray,
        layers: FloatArray,
    ) -> FloatArray:
        """(H, P) exposed gradient and parameter traffic.

        ZeRO 0-2: what the last micro-batch's backward on the first stage, which ends last (all
        but its first layer, whose gradients come last), and the next step's first forward cannot
        hide. ZeRO-2 reduces after every micro-batch. ZeRO-3: a layer's backward hides the next
        gather and the previous reduction, or waits for them.
        """
        sync, at = tables.sync, tables.at_sync
        zero, m = plan["zero"], plan["num_microbatches"]
        stack = self.stack
        reduce_s, gather_s = sync.reduce_s[:, at], sync.gather_s[:, at]
        window: FloatArray = np.maximum(layers[FIRST] - 1.0, 0.0)
        hidden = np.minimum(stack.overlap_grad_reduce * reduce_s, window * layer_b)
        repeats = np.where(zero == 2, m, 1.0)
        exposed = repeats * (reduce_s - hidden)
        hidden = np.minimum(stack.overlap_param_gather * gather_s, window * layer_f)
        exposed = exposed + gather_s - hidden + sync.scalar_s[:, at]
        if not np.any(zero == 3):
            return exposed
        unit_gather, unit_reduce = sync.unit_gather_s[:, at], sync.unit_reduce_s[:, at]
        slow = stack.overlap_slowdown - 1.0
        forward = _waits(unit_gather, layer_f, stack.overlap_param_gather)
        backward = _waits(unit_gather + unit_reduce, layer_b, stack.overlap_grad_reduce)
        most: FloatArray = layers.max(axis=0)
        sharded = most * (forward + backward + slow * (layer_f + layer_b))
        # The first gather of a pass and the last reduction have nothing to hide behind.
        ends = sync.ends_gather_s[:, at] + sync.ends_reduce_s[:, at]
        sharded = m * (sharded + unit_gather + unit_reduce + ends)
        return exposed + np.where((zero == 3) & (unit_gather > 0), sharded, 0.0)


def _waits(traffic_s: FloatArray, beside_s: FloatArray, overlap: float) -> FloatArray:
    """Seconds of traffic that do not fit beside compute."""
    return traffic_s - np.minimum(overlap * traffic_s, beside_s)


def _gathered(
    table: LayerTable | EndsTable | ScheduleTable, index: NDArray[np.intp]
) -> dict[str, FloatArray]:
    return {field.name: getattr(table, field.name)[..., index] for field in fields(table)}
