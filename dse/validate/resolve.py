"""From a published row to a case that the evaluator can price, or to a refusal by reason.

What a row does not say is filled by a stated rule and listed in `assumed`; what it says and we do
not model is refused. `REASONS` is the closed list of refusals.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from dse.plan import Plan
from dse.rules import Job, check
from dse.stacks import Stack, load_stack
from dse.stacks.levels import silicon_of
from dse.validate import machines, models
from dse.validate.rows import RECALLED, Row
from dse.validate.vocabulary import Family, family_of, meaning
from dse.workload import TransformerConfig, Workload, make_workload
from hwmodels.errors import ConfigError
from hwmodels.network import Cluster

REASONS: Mapping[str, str] = {
    "no time or rate": "the row states neither a step time nor tokens/s",
    "chip not known": "the hardware text names no chip of the catalogue",
    "machine not known": "no node is known for the chip, or the job does not fill whole nodes",
    "model not known": "the model text matches nothing, or its dimensions are missing",
    "model kind not modelled": "the model is known and of a kind that is not modelled",
    "precision not modelled": "the arithmetic is not one of bf16, fp16, fp32, tf32, fp8, fp4, or "
    "the chip has no peak for it",
    "batch or sequence not stated": "global batch, sequence length or number of chips is missing",
    "layout not stated": "a job of several chips without its parallel degrees",
    "layout contradicts itself": "the degrees do not multiply to the chips, or the batch does not "
    "divide by the replicas",
    "layout not modelled": "the plan breaks a rule of the plan space",
    "synchronisation not modelled": "parameter servers, offload, hybrid sharding",
    "software not modelled": "the software is known and behaves as no stack does",
    "recompute not known": "the text about recomputation matches nothing",
}
"""Every reason for which a row is refused, and what it means."""

LAST_YEAR_UNFUSED = 2022
"""Until then Megatron's attention stored its scores and nothing overlapped (Megatron-Core's flash
attention and overlap flags came in 2023)."""
CHUNK_LAYERS = 2
"""Layers of an interleaved chunk where a tuned run does not state its interleaving: published
Megatron-Core recipes keep 1 or 2."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that is not evaluated: a key of `REASONS`, and what exactly."""

    row: Row
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Case:
    """A row as the evaluator reads it.

    Args:
        row: The row.
        family: Who published it.
        workload: Model, sequence length, precision.
        cluster: The machine, as large as the job.
        stack: The software, no factor fitted.
        plan: The plan, every field filled.
        assumed: What the row does not say and a rule filled, `field = value (rule)`.
    """

    row: Row
    family: str
    workload: Workload
    cluster: Cluster
    stack: Stack
    plan: Plan
    assumed: tuple[str, ...]

    @property
    def generation(self) -> str:
        """Silicon of the chip, which levels are kept by."""
        return silicon_of(self.cluster.chip)


class _Refused(Exception):  # noqa: N818  - a value on its way to `resolve`, never an error
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(slots=True)
class _Filling:
    """A row while it is being filled."""

    row: Row
    family: Family
    assumed: list[str] = field(default_factory=list)

    def assume(self, name: str, value: object, why: str) -> None:
        self.assumed.append(f"{name} = {value} ({why})")


def resolve(row: Row) -> Case | Refusal:
    """The case of a row, or why there is none."""
    try:
        return _case(_Filling(row, family_of(row.source)))
    except _Refused as refused:
        return Refusal(row, refused.reason, refused.detail)


def _case(filling: _Filling) -> Case:
    row = filling.row
    if row.convolutional:
        raise _Refused("model kind not modelled", f"{row.model}: a convolutional network")
    if row.step_time_s is None and row.tokens_per_s_per_device is None:
        raise _Refused("no time or rate", "step_time_s and tokens_per_s_per_device are empty")
    if row.num_devices is None or row.global_batch is None:
        missing = "num_devices" if row.num_devices is None else "global_batch"
        raise _Refused("batch or sequence not stated", f"{missing} is empty")
    if filling.family.refuse:
        raise _Refused("software not modelled", filling.family.refuse)
    degrees = _degrees(filling)
    try:
        config, about_model = models.config_of(row, tp=degrees["tp"])
    except models.NotModelledError as problem:
        raise _Refused(problem.reason, problem.detail) from None
    filling.assumed += about_model
    precision = _precision(filling)
    try:
        cluster, about_machine = machines.cluster_of(row)
    except machines.NotKnownError as problem:
        raise _Refused(problem.reason, problem.detail) from None
    filling.assumed += about_machine
    dtype_known = precision in cluster.chip.peak_flop_per_s
    if not dtype_known:
        raise _Refused("precision not modelled", f"{cluster.chip.name} has no {precision} peak")
    stack = _stack(filling, degrees["zero"])
    seq = row.seq or 0
    if not seq:
        raise _Refused("batch or sequence not stated", "seq is empty")
    try:
        workload = make_workload(config, seq, precision)
    except ConfigError as problem:
        raise _Refused("model not known", problem.message) from None
    plan = _plan(filling, config, workload, degrees)
    if row.verified == RECALLED:
        filling.assumed.append("the row was recalled, not read again")
    return Case(row, filling.family.family, workload, cluster, stack, plan, tuple(filling.assumed))


def _degrees(filling: _Filling) -> dict[str, int]:
    row, chips = filling.row, filling.row.num_devices or 0
    found = {"zero": _zero(filling)}
    stated = {axis: getattr(row, axis) for axis in ("tp", "pp", "cp", "dp")}
    replicated = found["zero"] == 3 or stated["dp"] == chips or chips == 1
    if stated["tp"] is None and stated["pp"] is None and not replicated:
        raise _Refused("layout not stated", f"{chips} chips without tp and pp")
    for axis in ("tp", "pp", "cp"):
        value = stated[axis]
        if value is None:
            value = 1
            if chips > 1:
                filling.assume(axis, 1, "not stated")
        found[axis] = value
    used = found["tp"] * found["pp"] * found["cp"]
    if chips % used:
        raise _Refused(
            "layout contradicts itself", f"tp·pp·cp = {used} does not divide {chips} chips"
        )
    dp = stated["dp"] or chips // used
    if used * dp != chips:
        raise _Refused(
            "layout contradicts itself",
            f"tp·pp·cp·dp = {used * dp}, not the {chips} chips",
        )
    return {**found, "dp": dp, "ep": row.ep or 1}


def _zero(filling: _Filling) -> int:
    text = filling.row.fsdp_or_zero
    if text:
        found = meaning("synchronisation", text)
        if found is None or not found.take:
            raise _Refused("synchronisation not modelled", text)
        return int(found.take)
    zero = filling.family.zero
    chosen = 1 if zero is None else zero
    filling.assume("zero", chosen, "the stack's custom" if zero is not None else "the default")
    return chosen


def _precision(filling: _Filling) -> str:
    text = filling.row.precision
    if not text:
        filling.assume("precision", "bf16", "not stated; 16 bit trains at one rate")
        return "bf16"
    found = meaning("precision", text)
    if found is None or not found.take:
        raise _Refused("precision not modelled", text)
    return found.take


def _stack(filling: _Filling, zero: int) -> Stack:
    named = filling.family.stack
    if named:
        return _bundled(named)
    year = filling.row.year
    modern = year is None or year > LAST_YEAR_UNFUSED
    chosen = "fsdp2" if zero == 3 else "megatron-core" if modern else "megatron-2022"
    filling.assume("stack", chosen, "the source tells no software")
    return _bundled(chosen)


@functools.cache
def _bundled(name: str) -> Stack:
    return load_stack(name)


def _plan(
    filling: _Filling, config: TransformerConfig, workload: Workload, degrees: Mapping[str, int]
) -> Plan:
    row = filling.row
    batch, dp, pp = row.global_batch or 0, degrees["dp"], degrees["pp"]
    if batch % dp:
        raise _Refused("layout contradicts itself", f"batch {batch} does not divide by dp = {dp}")
    micro = row.micro_batch
    if micro is None:
        micro = 1
        filling.assume("micro_batch", 1, "not stated")
    if (batch // dp) % micro:
        whole = max(d for d in range(1, min(micro, batch // dp) + 1) if (batch // dp) % d == 0)
        filling.assume("micro_batch", whole, f"{micro} leaves a smaller last micro-batch")
        micro = whole
    vpp = _chunks(filling, config.layers, degrees, batch // dp // micro)
    ends = _ends(filling, config.layers, pp, vpp)
    try:
        plan = Plan(
            tp=degrees["tp"],
            pp=pp,
            dp=dp,
            cp=degrees["cp"],
            ep=degrees["ep"],
            vpp=vpp,
            micro_batch_size=micro,
            global_batch_size=batch,
            sequence_parallel=_sequence_parallel(filling, config, degrees["tp"]),
            zero=degrees["zero"],
            recompute=_recompute(filling),
            grad_dtype=_grad_dtype(filling),
            first_stage_layers=ends,
            last_stage_layers=ends,
        ).resolved(row.num_devices or 0)
        # The rule about uneven interleaved stages protects the search, where it bounds the space.
        rules = plan if not (ends and vpp > 1) else plan.model_copy(
            update={"vpp": 1, "schedule": "1f1b"}
        )  # fmt: skip
        check(rules, Job(config, workload.seq_length, row.num_devices or 0))
    except ConfigError as problem:
        raise _Refused("layout not modelled", problem.message) from None
    return plan


def _chunks(
    filling: _Filling, layers: int, degrees: Mapping[str, int], num_microbatches: int
) -> int:
    row, pp = filling.row, degrees["pp"]
    if row.vpp is not None or pp == 1:
        return row.vpp if row.vpp is not None and pp > 1 else 1
    tuned = filling.family.stack in ("megatron-core", "megatron-bridge", "mlperf-nvidia")
    vpp = 1
    if tuned and num_microbatches % pp == 0:
        share = -(-(layers + 2) // pp) if layers % pp else layers // pp
        vpp = max(1, share // CHUNK_LAYERS if share % CHUNK_LAYERS == 0 else share)
    filling.assume("vpp", vpp, "not stated; tuned runs interleave" if tuned else "not stated")
    return vpp


def _ends(filling: _Filling, layers: int, pp: int, vpp: int) -> int:
    """Layers of the first and of the last stage, 0 where all stages are equal.

    Frameworks count embedding and head as a layer each where the layers do not divide: the stages
    between hold ceil((L + 2) / pp), the ends share the rest.
    """
    if pp == 1 or layers % (pp * vpp) == 0:
        return 0
    middle = -(-(layers + 2) // pp)
    left = layers - middle * (pp - 2)
    if left < 2 or left % 2:
        raise _Refused("layout not modelled", f"{layers} layers do not divide over {pp} stages")
    filling.assume("first_stage_layers", left // 2, "embedding and head count as a layer each")
    return left // 2


def _sequence_parallel(filling: _Filling, config: TransformerConfig, tp: int) -> bool:
    text = filling.row.seq_parallel.lower()
    if tp == 1:
        return False
    if config.is_moe:
        return True
    if text in ("yes", "true", "on"):
        return True
    if text in ("no", "false", "off"):
        return False
    default = filling.family.sequence_parallel
    chosen = True if default is None else default
    filling.assume("sequence_parallel", str(chosen).lower(), "the stack's custom")
    return chosen


def _grad_dtype(filling: _Filling) -> str:
    known = filling.family.grad_dtype
    chosen = known or "fp32"
    filling.assume("grad_dtype", chosen, "the stack's custom" if known else "the default")
    return chosen


def _recompute(filling: _Filling) -> str:
    text = filling.row.recompute
    if not text:
        filling.assume("recompute", "none", "not stated")
        return "none"
    found = meaning("recompute", text)
    if found is None or not found.take:
        raise _Refused("recompute not known", text)
    return found.take
