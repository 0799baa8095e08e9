"""The scalar door: one model, one cluster, one plan, one report."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from dse.extrapolation import extrapolated
from dse.items import CommItem, Itemised, OperatorItem
from dse.memory import CATEGORIES, stage_bytes, state_by_category
from dse.plan import Plan
from dse.report import (
    Comm,
    ExposedComm,
    Operator,
    Parts,
    ProvenanceShare,
    Report,
    StageMemory,
)
from dse.rules import Job, check
from dse.schedule import FIRST, LAST, MIDDLE, in_flight
from dse.stacks import Stack, calibrated_stack
from dse.step import StepModel
from dse.uncertainty import NORMAL_80, Run, reasons, spread
from dse.workload import TransformerConfig, Workload, load_model, make_workload
from dse.workload.counts import hardware_flop, model_flop, parameters
from hwmodels.catalog import load_cluster
from hwmodels.errors import ConfigError, InfeasibleError
from hwmodels.network import Cluster
from hwmodels.table import HardwareTable
from hwmodels.version import __version__

FlopConvention = Literal["full", "causal"]
CALIBRATION = "shipped"
"""What a stack chosen by name is priced with."""
TRANSFERRED_SD = 0.10
ASSUMED_SD = 0.30
"""Log standard deviations of parameters taken from a family, and of those taken from a rule:
left-out chips of the kernel tables differ by 8 to 14 per cent, unmeasured kernels by a factor of
about 1.3."""


def evaluate(
    model: TransformerConfig | str,
    cluster: Cluster | str,
    plan: Plan,
    *,
    chips: int | None = None,
    stack: Stack | str | None = None,
    seq_length: int | None = None,
    precision: str = "bf16",
    flop_convention: FlopConvention = "full",
    must_fit: bool = True,
) -> Report:
    """Price one plan.

    Args:
        model: A configuration, a bundled name, or the path of a config.json.
        cluster: A cluster, or a name or YAML path together with `chips`.
        plan: The plan; fields left at None are filled in for the chip count.
        chips: Devices of the job, where `cluster` is a name.
        stack: A stack's name or a YAML path, priced at the level that published runs told of it;
            `megatron-core` if None. A `Stack` is taken as it is.
        seq_length: Tokens of a sequence; the model's maximum or 4096, whichever is less, if None.
        precision: `bf16`, `fp16`, `fp32` or `fp8`.
        flop_convention: Whether model FLOPs count the full square of attention or the causal
            half.
        must_fit: Refuse a plan that does not fit.

    Raises:
        ConfigError: A name, field or combination that is not allowed.
        UnsupportedError: A case that is not modelled.
        InfeasibleError: The plan does not fit and `must_fit` is set.
    """
    config = load_model(model) if isinstance(model, str) else model
    machine = load_cluster(cluster, num_chips=chips) if isinstance(cluster, str) else cluster
    if flop_convention not in ("full", "causal"):
        raise ConfigError(
            f"flop_convention {flop_convention!r} is not known",
            field="flop_convention",
            value=flop_convention,
            allowed=("full", "causal"),
        )
    chosen = calibrated_stack(stack, machine.chip)
    workload = make_workload(config, seq_length, precision)
    resolved = plan.resolved(machine.num_chips)
    check(resolved, Job(config, workload.seq_length, machine.num_chips))
    step = StepModel(workload, HardwareTable.of([machine]), chosen)
    itemised = Itemised(step, resolved)
    memory = stage_memory(step, itemised)
    worst = max(range(len(memory)), key=lambda stage: memory[stage].total)
    usable = float(step.usable_bytes[0])
    fits = memory[worst].total <= usable
    if must_fit and not fits:
        raise InfeasibleError(
            f"the plan needs {memory[worst].total / 2**30:.1f} GiB a device on stage {worst}, "
            f"a {machine.chip.name} has {usable / 2**30:.1f} GiB after the reserve",
            stage=worst,
            needed_bytes_per_device=memory[worst].total,
            available_bytes_per_device=usable,
        )
    return _report(step, itemised, machine, memory, fits=fits, flop_convention=flop_convention)


def stage_memory(step: StepModel, itemised: Itemised) -> tuple[StageMemory, ...]:
    """Peak bytes by category of every pipeline stage of an itemised plan."""
    plan, tables = itemised.plan, step.tables(itemised.table)
    keys = itemised.keys
    reserve = float(step.reserve_bytes[0])
    capacity = float(step.hardware.chip["memory_bytes"][0])
    found = []
    for rank in range(plan.pp):
        kind = FIRST if rank == 0 else LAST if rank == plan.pp - 1 else MIDDLE
        alive = in_flight(
            keys["schedule"], keys["pp"], keys["vpp"], np.array([itemised.micro_batches]), rank
        )
        held = stage_bytes(tables, kind, alive)
        parts = {
            **state_by_category(tables, kind),
            "activations": held.activations,
            "logits": held.logits,
            "gathered": held.gathered,
            "workspace": held.workspace,
        }
        amounts = {name: float(parts[name][0]) for name in CATEGORIES}
        total = sum(amounts.values())
        found.append(StageMemory(**amounts, total=total, reserve=reserve, capacity=capacity))
    return tuple(found)


def _report(
    step: StepModel,
    itemised: Itemised,
    cluster: Cluster,
    memory: tuple[StageMemory, ...],
    *,
    fits: bool,
    flop_convention: FlopConvention,
) -> Report:
    workload, stack, plan = step.workload, step.stack, itemised.plan
    config, batch = workload.config, itemised.plan.global_batch_size
    time_s = float(itemised.columns.step_time_s[0, 0])
    parts = {name: float(value[0, 0]) for name, value in itemised.columns.parts.items()}
    operators, comm = itemised.operators(), itemised.comm()
    share = provenance(step, cluster, operators, comm, parts["host"])
    useful = model_flop(config, workload.seq_length, sequences=batch, convention=flop_convention)
    executed = hardware_flop(
        config,
        workload.seq_length,
        sequences=batch,
        recompute=plan.recompute,
        flash=stack.attention == "flash",
        convention=flop_convention,
    )
    peak = cluster.chip.peak_flop_per_s[workload.precision] * cluster.num_chips
    tokens = batch * workload.seq_length
    warnings = []
    if workload.seq_length > config.max_seq:
        warnings.append(
            f"seq_length {workload.seq_length} is above the model's maximum {config.max_seq}"
        )
    if cluster.estimated:
        warnings.append("estimated by rule: " + ", ".join(cluster.estimated))
    beyond = extrapolated(workload, cluster, plan, operators, time_s)
    if beyond:
        warnings.append("extrapolated: " + "; ".join(beyond))
    ideal = sorted({name for name in governing(step, operators) if _is_ideal(cluster, name)})
    if ideal:
        warnings.append("a bound, not an estimate: 1.0 is taken for " + ", ".join(ideal))
    return Report(
        version=__version__,
        calibration=stack.calibration,
        inputs_sha256=inputs_sha256(workload, cluster, stack, plan),
        seed=0,
        warnings=tuple(warnings),
        model=config.name,
        cluster=cluster.name,
        chips=cluster.num_chips,
        seq_length=workload.seq_length,
        precision=workload.precision,
        stack=stack.name,
        step_time_s=time_s,
        interval_80_s=interval_80_s(time_s, Run(workload, cluster, stack, plan), parts, share),
        parts_s=Parts(
            compute=parts["compute"],
            exposed_comm=ExposedComm(**{name: parts[name] for name in ExposedComm.model_fields}),
            bubble=parts["bubble"],
            optimizer=parts["optimizer"],
            host=parts["host"],
        ),
        memory_bytes=memory,
        fits=fits,
        params=parameters(config).total,
        model_flop=useful,
        hardware_flop=executed,
        flop_convention=flop_convention,
        mfu=useful / (time_s * peak),
        hfu=executed / (time_s * peak),
        tokens_per_s=tokens / time_s,
        tokens_per_s_per_chip=tokens / time_s / cluster.num_chips,
        comm=tuple(Comm(**_fields(item)) for item in comm),
        operators=tuple(Operator(**_fields(item)) for item in operators),
        kernel_parameters=dict(cluster.chip.kernel),
        provenance_share=share,
        bottleneck=bottleneck(operators, parts),
        plan=plan,
    )


def _fields(item: CommItem | OperatorItem) -> dict[str, object]:
    return {name: getattr(item, name) for name in item.__slots__}


def bottleneck(operators: list[OperatorItem], parts: Mapping[str, float]) -> str:
    """The largest entry of the ledger, compute split by kernel kind and by what limits it."""
    entries: dict[str, float] = {}
    for item in operators:
        if item.kind != "optimizer":
            label = f"{item.kind} ({item.bound})"
            entries[label] = entries.get(label, 0.0) + item.time_s
    for name in ("tp", "cp", "ep", "pp", "dp"):
        entries[f"{name} communication"] = parts[name]
    entries |= {"pipeline bubble": parts["bubble"], "optimizer": parts["optimizer"]}
    entries["host launches"] = parts["host"]
    return max(entries, key=lambda label: entries[label])


_PARAMETER_OF = {
    "attention": "attention_efficiency",
    "pointwise": "memory_efficiency",
    "embedding": "memory_efficiency",
    "optimizer": "optimizer_memory_efficiency",
}


def governing(step: StepModel, operators: list[OperatorItem]) -> list[str]:
    """The kernel parameter that each operator's time rests on most."""
    found = []
    for item in operators:
        parameter = _PARAMETER_OF.get(item.kind, f"matmul_efficiency.{step.workload.precision}")
        if item.kind == "attention" and step.stack.attention == "unfused":
            parameter = f"matmul_efficiency.{step.pricing.dtype}"
        found.append(parameter)
    return found


def _is_ideal(cluster: Cluster, parameter: str) -> bool:
    return cluster.chip.kernel.get(parameter) == 1.0


def provenance(
    step: StepModel,
    cluster: Cluster,
    operators: list[OperatorItem],
    comm: list[CommItem],
    host_s: float,
) -> ProvenanceShare:
    """Shares of the busy seconds by how their governing parameter is known.

    A kernel counts by its efficiency's status, a message by whether a level's efficiency was
    measured; host launches are assumed. Bubbles follow the rest.
    """
    spent = {"measured": 0.0, "transferred": 0.0, "assumed": host_s}
    status = cluster.chip.kernel_status
    for item, parameter in zip(operators, governing(step, operators), strict=True):
        spent[status.get(parameter, "assumed")] += item.time_s
    guessed = any(name.endswith("efficiency") for name in cluster.estimated if "levels." in name)
    for message in comm:
        inside = message.span_nodes == 1
        known = "measured" if inside and not guessed else "transferred"
        spent[known] += message.exposed_s
    total = math.fsum(spent.values())
    return ProvenanceShare(**{name: value / total for name, value in spent.items()})


def interval_80_s(
    time_s: float, run: Run, parts_s: Mapping[str, float], share: ProvenanceShare
) -> tuple[float, float]:
    """Central 80 % of a log-normal around the prediction, wider on the side that reasons say.

    Variances add up: the reasons of the run (`dse.uncertainty`), and what rests on transferred or
    assumed parameters in proportion to its share.
    """
    shared = math.hypot(TRANSFERRED_SD * share.transferred, ASSUMED_SD * share.assumed)
    fast, slow = spread(reasons(run, parts_s, time_s))
    low, high = (NORMAL_80 * math.hypot(sd, shared) for sd in (fast, slow))
    return time_s * math.exp(-low), time_s * math.exp(high)


def inputs_sha256(workload: Workload, cluster: Cluster, stack: Stack, plan: Plan) -> str:
    """Fingerprint of everything that a report was computed from."""
    canonical = json.dumps(
        [part.model_dump(mode="json") for part in (workload, cluster, stack, plan)],
        sort_keys=True,
    )
    return hashlib.sha256(canonical.encode()).hexdigest()
