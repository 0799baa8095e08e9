"""A report in words: the answer in three lines, then its ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dse.plan import Plan
from dse.report import Report
from search.cli.output import columns, gib, seconds

DEFAULTS: Mapping[str, object] = {
    "cp": 1,
    "ep": 1,
    "etp": 1,
    "vpp": 1,
    "zero": 1,
    "recompute": "none",
    "mesh_order": "tp-cp-dp-pp",
    "optimizer": "adam",
    "grad_dtype": "fp32",
    "master_dtype": "fp32",
    "first_stage_layers": 0,
    "last_stage_layers": 0,
}
"""Fields that go without saying in a line of text; JSON has them all."""


def plan_text(plan: Plan) -> str:
    """A plan as a short line: degrees and batch always, the rest where it is not the default."""
    parts = [f"tp {plan.tp}", f"pp {plan.pp}", f"dp {plan.dp}"]
    degrees = ("cp", "ep", "etp", "vpp")
    parts += [f"{name} {getattr(plan, name)}" for name in degrees if getattr(plan, name) != 1]
    parts.append(f"micro-batch {plan.micro_batch_size}")
    if plan.tp > 1 and not plan.sequence_parallel:
        parts.append("no sequence parallelism")
    if plan.schedule == "gpipe":
        parts.append("gpipe")
    for field, default in DEFAULTS.items():
        value = getattr(plan, field)
        if value != default and field not in degrees:
            parts.append(f"{field.replace('_', ' ')} {value}")
    return ", ".join(parts)


def headline(report: Report) -> str:
    """The plan and how long a step takes."""
    low_s, high_s = report.interval_80_s
    return (
        f"{plan_text(report.plan)}: {seconds(report.step_time_s)} a step "
        f"(80 %: {seconds(low_s)} to {seconds(high_s)})"
    )


def answer(report: Report) -> str:
    """Three lines: the plan and its time, what bounds it, whether it fits and by how much."""
    stages = report.memory_bytes
    worst = max(range(len(stages)), key=lambda stage: stages[stage].total)
    memory = stages[worst]
    usable = memory.capacity - memory.reserve
    left = usable - memory.total
    verdict = f"{gib(left)} GiB free" if left >= 0 else f"{gib(-left)} GiB short"
    # an MFU says nothing without what it counts: masked pairs of attention or all of them
    counted = "full-square attention" if report.flop_convention == "full" else "causal attention"
    return "\n".join(
        [
            headline(report),
            f"Bound by {report.bottleneck}; MFU {100 * report.mfu:.1f} % ({counted}), "
            f"{report.tokens_per_s_per_chip:,.0f} tokens/s a chip",
            f"{'Fits' if report.fits else 'Does not fit'}: stage {worst} needs "
            f"{gib(memory.total)} of {gib(usable)} GiB a device, {verdict}",
        ]
    )


def ledger(report: Report) -> str:
    """Time by part, memory by stage."""
    total_s = report.step_time_s
    time_rows = [
        (name, seconds(time_s), f"{100 * time_s / total_s:.1f}")
        for name, time_s in report.parts_s.in_order()
        if time_s
    ]
    share = report.provenance_share
    return "\n\n".join(
        [
            columns(("part", "time", "%"), [*time_rows, ("step", seconds(total_s), "100.0")]),
            columns(
                ("stage", "weights", "gradients", "optimizer", "activations", "other", "total"),
                _memory_rows(report),
                title="Memory, GiB a device",
            ),
            f"Of the busy time {100 * share.measured:.0f} % rests on measured parameters, "
            f"{100 * share.transferred:.0f} % on transferred and {100 * share.assumed:.0f} % on "
            f"assumed ones. Stack {report.stack}, {report.precision}, sequences of "
            f"{report.seq_length}.",
        ]
    )


def _memory_rows(report: Report) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for stage, memory in enumerate(report.memory_bytes):
        other = memory.logits + memory.gathered + memory.workspace
        cells = (memory.weights, memory.gradients, memory.optimizer, memory.activations, other)
        rows.append((stage, *(gib(cell) for cell in cells), gib(memory.total)))
    if len(rows) <= 6:
        return rows
    # the ends differ, the stages between fall off evenly
    return [*rows[:3], ("...", *[""] * 6), *rows[-2:]]
