"""The ledger of one plan, item by item: every kernel and every collective of the critical stage.

The sums are the ledger's parts: operators without the optimizer add up to `compute`, the exposed
seconds of a group's messages to that group's part. One plan, one machine; K = P = H = 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dse.block import BlockCost, Message, Work, block_cost
from dse.mesh import strides
from dse.parameters import stage_layers, stage_parameters, units_of
from dse.plan import IntArray, Plan, PlanTable, plan_row
from dse.schedule import FIRST, LAST
from dse.step import StepColumns, StepModel
from dse.sync import SCALARS, sync_calls
from dse.tables import layer_groups, priced_blocks
from hwmodels import collectives
from hwmodels.placement import members, span_nodes


@dataclass(frozen=True, slots=True)
class OperatorItem:
    """One kind of kernel: `time_s` is that of all its `count` runs in a step."""

    name: str
    kind: str
    shape: dict[str, float]
    count: float
    time_s: float
    bound: str


@dataclass(frozen=True, slots=True)
class CommItem:
    """One kind of collective: seconds are those of all its calls in a step."""

    name: str
    group: str
    size: int
    span_nodes: int
    collective: str
    algorithm: str
    count_per_step: float
    bytes_per_call: float
    time_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True)
class _Repeated:
    """A block and how often the critical stage runs it."""

    cost: BlockCost
    times: float
    recomputes_all: bool
    recomputes_core: bool


class Itemised:
    """Items of one resolved plan on a model with one hardware row."""

    def __init__(self, model: StepModel, plan: Plan) -> None:
        self.model = model
        self.plan = plan
        row = plan_row(plan)
        self.keys: dict[str, IntArray] = {axis: np.array([value]) for axis, value in row.items()}
        self.table = PlanTable.from_columns(self.keys)
        self.columns: StepColumns = model.evaluate(self.table)
        self.stage = int(self.columns.critical[0, 0])
        self.micro_batches = row["global_batch_size"] // (row["micro_batch_size"] * row["dp"])
        config = model.workload.config
        self.layers = float(stage_layers(config.layers, self.keys)[self.stage, 0])

    # Blocks ----------------------------------------------------------------------------------

    @cached_property
    def _blocks(self) -> tuple[_Repeated, ...]:
        pricing, seq_length = self.model.pricing, self.model.workload.seq_length
        flag = bool(self.plan.sequence_parallel)
        blocks, shapes = priced_blocks(pricing, seq_length, self.keys, sequence_parallel=flag)
        m = float(self.micro_batches)
        recompute = self.plan.recompute
        chosen = [(blocks.layer, m * self.layers, recompute == "full", recompute == "selective")]
        if self.stage == FIRST:
            chosen.append((blocks.embedding, m, False, False))
        if self.stage == LAST or self.plan.pp == 1:
            chosen.append((blocks.head, m, False, False))
        groups = layer_groups(self.keys)
        return tuple(
            _Repeated(block_cost(block, shapes, groups, pricing), times, whole, core)
            for block, times, whole, core in chosen
        )

    def operators(self) -> list[OperatorItem]:
        """Every kernel of the critical stage, and the optimizer."""
        items = []
        for block in self._blocks:
            for work in block.cost.works:
                again = work.direction == "forward" and (
                    block.recomputes_all or (block.recomputes_core and work.kind == "attention")
                )
                count = block.times * (2.0 if again else 1.0)
                items.append(_operator(work, count))
        items.append(
            OperatorItem(
                "optimizer",
                "optimizer",
                {},
                1.0,
                float(self.columns.parts["optimizer"][0, 0]),
                "memory",
            )
        )
        return [item for item in items if item.time_s > 0]

    # Messages --------------------------------------------------------------------------------

    def comm(self) -> list[CommItem]:
        """Every collective of the critical stage."""
        items = []
        for block in self._blocks:
            for message in block.cost.messages:
                again = message.direction == "forward" and block.recomputes_all
                count = block.times * message.repeats * (2.0 if again else 1.0)
                items.append(self._block_message(message, count))
        items += [*self._ring(), *self._hops(), *self._once_a_step()]
        return [
            item
            for item in items
            if item.size > 1 and item.bytes_per_call > 0 and item.count_per_step > 0
        ]

    def _block_message(self, message: Message, count: float) -> CommItem:
        size, stride = layer_groups(self.keys)[message.dim]
        hw = self.model.hardware
        return CommItem(
            f"{message.name} ({message.direction})",
            message.link,
            int(size[0]),
            int(span_nodes(hw, [(size, stride)])[0, 0]),
            message.verb,
            message.algorithms[int(message.best[0, 0])],
            count,
            float(message.nbytes[0]),
            count * float(message.seconds[0, 0]),
            count * float(message.exposed_s[0, 0]),
        )

    def _neighbours(
        self, dim: str, name: str, count: float, nbytes: float, exposed_s: float
    ) -> CommItem:
        hw = self.model.hardware
        size, stride = self.keys[dim], strides(self.keys)[dim]
        tables = self.model.tables(self.table)
        start, rate = (
            (tables.sync.ring_start_s, tables.sync.ring_s_per_byte)
            if dim == "cp"
            else (tables.sync.hop_start_s, tables.sync.hop_s_per_byte)
        )
        call_s = float(start[0, 0] + rate[0, 0] * nbytes)
        return CommItem(
            name,
            dim,
            int(size[0]),
            int(span_nodes(hw, [(size, stride)])[0, 0]),
            "p2p",
            "p2p",
            count,
            nbytes,
            count * call_s,
            exposed_s,
        )

    def _ring(self) -> list[CommItem]:
        if self.plan.cp == 1:
            return []
        kv_bytes = float(self.model.tables(self.table).layer.kv_bytes[0])
        each = (self.plan.cp - 1) * self.micro_batches * self.layers
        forward = each * (1.0 if self.plan.recompute == "none" else 2.0)
        exposed = float(self.columns.parts["cp"][0, 0])
        # Forward and backward share the exposed time by the bytes that they send.
        share = forward / (forward + 2.0 * each)
        return [
            self._neighbours("cp", "ring of k, v (forward)", forward, kv_bytes, share * exposed),
            self._neighbours(
                "cp",
                "ring of k, v and gradients (backward)",
                each,
                2.0 * kv_bytes,
                (1.0 - share) * exposed,
            ),
        ]

    def _hops(self) -> list[CommItem]:
        if self.plan.pp == 1:
            return []
        ends = self.model.tables(self.table).ends
        nbytes = float(ends.boundary_bytes[0])
        count = float(self.micro_batches * self.plan.vpp)
        hidden = 1.0 - self.model.stack.overlap_p2p
        items = []
        for name in ("activations (forward)", "gradients (backward)"):
            item = self._neighbours("pp", name, count, nbytes, 0.0)
            items.append(_with_exposed(item, hidden * item.time_s))
        if ends.arrival_tp_s[0, 0] > 0:
            items.append(self._arrivals(2.0 * count, nbytes * self.plan.tp))
        return items

    def _arrivals(self, count: float, nbytes: float) -> CommItem:
        """The gathers that join messages cut over tp."""
        hw, stack = self.model.hardware, self.model.stack
        group = layer_groups(self.keys)["tp"]
        costs = collectives.coefficients("all_gather", hw, members(hw, [group]))
        call_s, best = collectives.seconds(costs, nbytes)
        time_s = count * float(call_s[0, 0]) * stack.network_factor
        return CommItem(
            "slices of a stage's input",
            "tp",
            self.plan.tp,
            int(span_nodes(hw, [group])[0, 0]),
            "all_gather",
            costs.algorithms[int(best[0, 0])],
            count,
            nbytes,
            time_s,
            time_s * (1.0 - stack.overlap_tp),
        )

    def _once_a_step(self) -> list[CommItem]:
        pricing, keys = self.model.pricing, self.keys
        units = units_of(pricing, self.model.workload.seq_length, keys)
        stages = stage_parameters(units, stage_layers(pricing.config.layers, keys), keys["pp"])
        items = []
        for call in sync_calls(pricing, units, stages, keys).values():
            size = int(np.prod([int(count[0]) for count, _ in call.dims]))
            count = self._sync_count(call.name)
            items.append(
                CommItem(
                    call.name,
                    call.link,
                    size,
                    int(span_nodes(self.model.hardware, call.dims)[0, 0]),
                    call.verb,
                    call.algorithms[int(call.best[0, 0])],
                    count,
                    float(call.nbytes[0]),
                    count * float(call.seconds[0, 0]),
                    count * float(call.seconds[0, 0]) if call.link != "dp" else 0.0,
                )
            )
        exposed_s = float(self.columns.parts["dp"][0, 0])
        scalars_s = sum(item.time_s for item in items if item.name in SCALARS)
        rest_s = sum(item.time_s for item in items if item.group == "dp") - scalars_s
        # Which of several overlapped messages is late is not decided: they share what is exposed.
        # Nothing runs beside the scalars.
        share = max(exposed_s - scalars_s, 0.0) / rest_s if rest_s > 0 else 0.0
        return [
            _with_exposed(item, (1.0 if item.name in SCALARS else share) * item.time_s)
            if item.group == "dp"
            else item
            for item in items
        ]

    def _sync_count(self, name: str) -> float:
        m = float(self.micro_batches)
        if "layer" in name:
            return m * self.layers * (2.0 if name.endswith("gather") else 1.0)
        alone = self.plan.pp == 1
        if name.endswith(("embedding gather", "embedding reduce")) and self.stage != FIRST:
            return 0.0
        if name.endswith(("head gather", "head reduce")) and not (alone or self.stage == LAST):
            return 0.0
        if name.endswith("gather"):
            kept = "head" in name and not self.model.stack.reshards_last_unit
            return m * (1.0 if kept else 2.0)
        if name.endswith((" head reduce", " embedding reduce")):
            return m
        reduces = name.endswith("gradients") and name.startswith(("dense", "expert"))
        return m if self.plan.zero == 2 and reduces else 1.0


def _operator(work: Work, count: float) -> OperatorItem:
    return OperatorItem(
        f"{work.name} ({work.direction})",
        work.kind,
        {label: float(np.broadcast_to(size, (1,))[0]) for label, size in work.shape.items()},
        count,
        count * float(work.seconds[0, 0]),
        str(work.bound()[0, 0]),
    )


def _with_exposed(item: CommItem, exposed_s: float) -> CommItem:
    return replace(item, exposed_s=exposed_s)
