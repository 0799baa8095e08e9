"""The best plans of one model on one cluster: the door to the exact search."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from dse.evaluation import evaluate
from dse.plan import Plan
from dse.report import Report
from dse.rules import Job
from dse.stacks import Stack, calibrated_stack
from dse.step import StepModel
from dse.workload import TransformerConfig, load_model, make_workload
from hwmodels.catalog import load_cluster
from hwmodels.errors import ConfigError, InfeasibleError
from hwmodels.network import Cluster
from hwmodels.table import HardwareTable
from hwmodels.version import __version__
from search.exact import Found, exact_search
from search.narrowing import LARGEST, Narrowing, narrowing
from search.pareto import Priced
from search.plan_csv import PlanCsv
from search.space import PlanSpace, named_space

SCHEMA = "ridge-dse/plan/1"
MOST_LISTED = 1_000
NOT_IN_SUMMARY = ("operators", "comm", "kernel_parameters")
GIB = 1024.0**3


class PricedPlan(BaseModel):
    """One plan with its two objectives."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan: Plan
    step_time_s: float
    peak_memory_bytes: float


class PlanSearchResult(BaseModel):
    """What an exact search found, and over what.

    Attributes:
        space: The named space.
        axes: Axis to the values it may take: no plan of their product, less what the rules refuse,
            is faster than `best[0]`.
        enumerated: Plans of the space; `evaluated` and `discarded` sum to it.
        evaluated: Plans priced.
        discarded: Reason to number of plans dropped before pricing.
        refused: Rule to how many choices it ended while the space was built; not plans.
        elapsed_s: Wall seconds of enumeration and search.
        best: Reports of the fastest plans, fastest first.
        front: Step time against peak memory, memory ascending.
        ties: Plans of `best` after the first that the model cannot tell from it.
        tie_fraction: How much slower a tie may be: the stack's structure uncertainty.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    schema_: str = Field(default=SCHEMA, alias="schema")
    version: str
    calibration: str
    inputs_sha256: str
    seed: int
    warnings: tuple[str, ...]
    model: str
    cluster: str
    chips: int
    seq_length: int
    precision: str
    stack: str
    global_batch_size: int
    space: str
    axes: Mapping[str, tuple[bool | int | str, ...]]
    headroom_bytes: float
    enumerated: int
    evaluated: int
    discarded: Mapping[str, int]
    refused: Mapping[str, int]
    elapsed_s: float
    best: tuple[Report, ...]
    front: tuple[PricedPlan, ...]
    ties: tuple[PricedPlan, ...]
    tie_fraction: float

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """The JSON object; `best` holds each report without its lists of kernels and messages."""
        dumped = super().model_dump(**{"by_alias": True, "mode": "json", **options})
        dumped["best"] = [
            {
                key: value
                for key, value in report.model_dump(mode="json").items()
                if key not in NOT_IN_SUMMARY
            }
            for report in self.best
        ]
        for name in ("front", "ties"):
            dumped[name] = [
                {**point.model_dump(), "plan": plan_fields(point.plan)}
                for point in getattr(self, name)
            ]
        return dumped


def plan_fields(plan: Plan) -> dict[str, Any]:
    """A resolved plan as JSON, with the number of micro-batches that follows."""
    per_step = plan.micro_batch_size * (plan.dp or 1)
    return {**plan.model_dump(), "num_microbatches": plan.global_batch_size // per_step}


def best_plans(
    model: TransformerConfig | str, cluster: Cluster | str, **options: Any
) -> tuple[Report, ...]:
    """Reports of the fastest plans, fastest first: `search_plans(...).best`.

    Args:
        model: As in `search_plans`.
        cluster: As in `search_plans`.
        options: As in `search_plans`; `global_batch_size` is needed.
    """
    return search_plans(model, cluster, **options).best


def search_plans(
    model: TransformerConfig | str,
    cluster: Cluster | str,
    *,
    global_batch_size: int,
    chips: int | None = None,
    space: str = "full",
    seq_length: int | None = None,
    precision: str = "bf16",
    stack: Stack | str | None = None,
    top: int = 10,
    fix: Mapping[str, object] | None = None,
    allow: Mapping[str, Sequence[object]] | None = None,
    max_tp_span: str | None = None,
    headroom_bytes: float = 0.0,
    all_csv: str | Path | None = None,
    overwrite: bool = False,
) -> PlanSearchResult:
    """Search a named plan space exactly.

    Args:
        model: A configuration, a bundled name, or the path of a config.json.
        cluster: A cluster, or a name or YAML path together with `chips`.
        global_batch_size: Sequences a step.
        chips: Devices of the job, where `cluster` is a name.
        space: `compact` or `full`.
        seq_length: Tokens a sequence; the smaller of the model's maximum and 4096 if None.
        precision: `bf16`, `fp16`, `fp32` or `fp8`.
        stack: A stack, its name or a YAML path; the default one if None.
        top: How many of the fastest plans to report.
        fix: Plan axis to the one value it may take.
        allow: Plan axis to the values it may take.
        max_tp_span: `"node"` keeps tp groups within a host.
        headroom_bytes: Memory to leave free on each device beyond the stack's reserve.
        all_csv: Write every plan of the space here, priced wherever it fits.
        overwrite: Whether that file may exist.

    Raises:
        ConfigError: A name, value or narrowing that is not allowed.
        InfeasibleError: The narrowed space is empty, or no plan of it fits.
    """
    _require(global_batch_size, "global_batch_size", 1, LARGEST)
    _require(top, "top", 1, MOST_LISTED)
    config = load_model(model) if isinstance(model, str) else model
    machine = load_cluster(cluster, num_chips=chips) if isinstance(cluster, str) else cluster
    chosen = calibrated_stack(stack, machine.chip)
    workload = make_workload(config, seq_length, precision)
    spec = named_space(space)
    narrowed = narrowing(
        fix,
        allow,
        tp_span=max_tp_span,
        chips_per_node=machine.chips_per_node,
        headroom_bytes=headroom_bytes,
        global_batch_size=global_batch_size,
    )
    step = StepModel(workload, HardwareTable.of([machine]), chosen)
    job = Job(config, workload.seq_length, machine.num_chips)
    began_s = time.perf_counter()
    plans = PlanSpace(spec, job, global_batch_size, narrowed)
    with PlanCsv(all_csv, overwrite=overwrite) if all_csv else nullcontext() as csv:
        found = exact_search(
            step,
            plans.chunks(),
            top=top,
            headroom_bytes=headroom_bytes,
            every=csv.write if csv is not None else None,
        )
    elapsed_s = time.perf_counter() - began_s
    if found.best is None or found.front is None:
        raise _nothing(found, plans, machine, float(step.usable_bytes[0]) - headroom_bytes)
    reports = tuple(
        evaluate(
            config,
            machine,
            found.best.table.plan(row),
            stack=chosen,
            seq_length=workload.seq_length,
            precision=precision,
            must_fit=False,
        )
        for row in range(len(found.best))
    )
    fastest_s = float(found.best.time_s[0])
    tied = found.best.time_s <= fastest_s * (1.0 + chosen.structure_sd)
    return PlanSearchResult(
        version=__version__,
        calibration=chosen.calibration,
        inputs_sha256=_fingerprint(
            [workload, machine, chosen], [space, global_batch_size, top], narrowed
        ),
        seed=0,
        warnings=reports[0].warnings,
        model=config.name,
        cluster=machine.name,
        chips=machine.num_chips,
        seq_length=workload.seq_length,
        precision=precision,
        stack=chosen.name,
        global_batch_size=global_batch_size,
        space=space,
        axes={axis: tuple(values) for axis, values in plans.axes.items()},
        headroom_bytes=headroom_bytes,
        enumerated=found.enumerated,
        evaluated=found.evaluated,
        discarded=found.discarded,
        refused=plans.refused,
        elapsed_s=elapsed_s,
        best=reports,
        front=_listed(found.front),
        ties=_listed(found.best.take(np.flatnonzero(tied)[1:])),
        tie_fraction=chosen.structure_sd,
    )


def _listed(priced: Priced) -> tuple[PricedPlan, ...]:
    return tuple(
        PricedPlan(
            plan=priced.table.plan(row),
            step_time_s=float(priced.time_s[row]),
            peak_memory_bytes=float(priced.memory_bytes[row]),
        )
        for row in range(len(priced))
    )


def _nothing(
    found: Found, plans: PlanSpace, machine: Cluster, available_bytes: float
) -> InfeasibleError:
    if found.least is None:
        ended = ", ".join(f"{reason} ({count})" for reason, count in plans.refused.items())
        return InfeasibleError(
            f"space {plans.spec.name} holds no plan"
            + (" within the narrowing" if plans.narrowing != Narrowing() else "")
            + (f"; choices ended by a rule: {ended}" if ended else "")
        )
    least = found.least
    plan = least.table.plan(0)
    return InfeasibleError(
        f"nothing fits: the least demanding of {found.enumerated} plans (tp {plan.tp}, "
        f"pp {plan.pp}, dp {plan.dp}, cp {plan.cp}, zero {plan.zero}, recompute {plan.recompute}) "
        f"needs {least.peak_bytes / GIB:.2f} GiB a device on stage {least.stage}, "
        f"a {machine.chip.name} has {available_bytes / GIB:.2f} GiB",
        stage=least.stage,
        needed_bytes_per_device=least.peak_bytes,
        available_bytes_per_device=available_bytes,
    )


def _require(value: int, field: str, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigError(
            f"{field} = {value} is not allowed",
            field=field,
            value=value,
            allowed=f"an integer from {least} to {most}",
        )


def _fingerprint(
    parts: Sequence[BaseModel], settings: Sequence[object], narrowed: Narrowing
) -> str:
    body = [
        *(part.model_dump(mode="json") for part in parts),
        *settings,
        {axis: list(values) for axis, values in narrowed.allowed.items()},
        narrowed.chips_per_tp_span,
        narrowed.headroom_bytes,
    ]
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
