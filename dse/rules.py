"""What makes a plan well formed, as one list of rules for one plan and for a million.

Each rule is a vectorised test over plan columns with the reason in words: the search counts plans
by the rule that refuses them, the scalar door raises the first one as a `ConfigError`. Rules
follow section 1 of the formula sheet in `docs/model.md` (what must divide what, and what the
schedules need).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dse.plan import MESH_ORDERS, OPTIONS, RECOMPUTE, SCHEDULES, IntArray, Plan, plan_row
from dse.workload.config import TransformerConfig
from hwmodels.errors import ConfigError

BoolArray = NDArray[np.bool_]
Columns = Mapping[str, IntArray]

INTERLEAVED = SCHEDULES.index("interleaved")
GPIPE = SCHEDULES.index("gpipe")
SELECTIVE = RECOMPUTE.index("selective")
PP_OUTERMOST = np.array([order.endswith("-pp") for order in MESH_ORDERS])


@dataclass(frozen=True, slots=True)
class Job:
    """What the rules need to know besides the plan."""

    model: TransformerConfig
    seq_length: int
    num_chips: int


@dataclass(frozen=True, slots=True)
class Rule:
    """One condition that a plan must meet.

    Args:
        reason: Short name, the key under which a search counts discards.
        field: The plan field to name in an error.
        broken: (columns, job) to (P,) True where the plan breaks the rule.
        message: (row, job) to a sentence with the numbers in it.
        allowed: (row, job) to what may be given instead, or None.
    """

    reason: str
    field: str
    broken: Callable[[Columns, Job], BoolArray]
    message: Callable[[Mapping[str, int], Job], str]
    allowed: Callable[[Mapping[str, int], Job], object] = lambda row, job: None


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def _moe(job: Job) -> bool:
    return job.model.experts > 0


def _dense_ffn(job: Job) -> int:
    """The width that tp divides: the dense FFN, or the shared experts', or none (1024-divisible
    0).
    """
    return job.model.shared_expert_ffn if _moe(job) else job.model.ffn


def _middle_stages(c: Columns) -> IntArray:
    ends = (c["first_stage_layers"] > 0).astype(np.int64) + (c["last_stage_layers"] > 0)
    middle: IntArray = np.maximum(c["pp"] - ends, 0)
    return middle


def _uneven(c: Columns) -> BoolArray:
    return (c["first_stage_layers"] > 0) | (c["last_stage_layers"] > 0)


def _middle_layers(c: Columns, job: Job) -> IntArray:
    return job.model.layers - c["first_stage_layers"] - c["last_stage_layers"]


def _split_broken(c: Columns, job: Job) -> BoolArray:
    middle = _middle_stages(c)
    left = _middle_layers(c, job)
    some = middle > 0
    bad = np.where(some, (left % np.maximum(middle, 1) != 0) | (left < middle), left != 0)
    broken: BoolArray = _uneven(c) & (bad | (c["pp"] < 2))
    return broken


def _experts_broken(c: Columns, job: Job) -> BoolArray:
    broken: BoolArray = c["ep"] > 1
    if _moe(job):
        broken = job.model.experts % c["ep"] != 0
    return broken


RULES: tuple[Rule, ...] = (
    Rule(
        "degrees do not multiply to the chips",
        "dp",
        lambda c, job: c["tp"] * c["pp"] * c["cp"] * c["dp"] != job.num_chips,
        lambda r, job: (
            f"tp·pp·cp·dp = {r['tp']}·{r['pp']}·{r['cp']}·{r['dp']} = "
            f"{r['tp'] * r['pp'] * r['cp'] * r['dp']}, not the {job.num_chips} chips"
        ),
        lambda r, job: f"degrees whose product is {job.num_chips}",
    ),
    Rule(
        "heads not divisible by tp",
        "tp",
        lambda c, job: job.model.heads % c["tp"] != 0,
        lambda r, job: f"tp = {r['tp']} does not divide the {job.model.heads} attention heads",
        lambda r, job: divisors(job.model.heads),
    ),
    Rule(
        "kv heads and tp do not divide one another",
        "tp",
        lambda c, job: (job.model.kv_heads % c["tp"] != 0) & (c["tp"] % job.model.kv_heads != 0),
        lambda r, job: (
            f"tp = {r['tp']} neither divides the {job.model.kv_heads} key/value heads nor is a "
            "multiple of them"
        ),
    ),
    Rule(
        "ffn not divisible by tp",
        "tp",
        lambda c, job: _dense_ffn(job) % c["tp"] != 0,
        lambda r, job: f"tp = {r['tp']} does not divide the FFN width {_dense_ffn(job)}",
    ),
    Rule(
        "batch not divisible",
        "global_batch_size",
        lambda c, job: c["global_batch_size"] % (c["micro_batch_size"] * c["dp"]) != 0,
        lambda r, job: (
            f"global_batch_size = {r['global_batch_size']} is not a multiple of "
            f"micro_batch_size·dp = {r['micro_batch_size']}·{r['dp']} = "
            f"{r['micro_batch_size'] * r['dp']}"
        ),
        lambda r, job: f"a multiple of {r['micro_batch_size'] * r['dp']}",
    ),
    Rule(
        "layers not divisible",
        "pp",
        lambda c, job: ~_uneven(c) & (job.model.layers % (c["pp"] * c["vpp"]) != 0),
        lambda r, job: (
            f"pp·vpp = {r['pp']}·{r['vpp']} = {r['pp'] * r['vpp']} does not divide the "
            f"{job.model.layers} layers"
        ),
        lambda r, job: (
            f"pp·vpp among {divisors(job.model.layers)}, or vpp = 1 with first_stage_layers and "
            "last_stage_layers"
        ),
    ),
    Rule(
        "uneven split does not fit",
        "first_stage_layers",
        _split_broken,
        lambda r, job: (
            f"first_stage_layers = {r['first_stage_layers']} and last_stage_layers = "
            f"{r['last_stage_layers']} leave layers that the other stages of pp = {r['pp']} "
            f"cannot share evenly ({job.model.layers} layers in all)"
        ),
    ),
    Rule(
        "uneven split with interleaving",
        "vpp",
        lambda c, job: _uneven(c) & (c["vpp"] > 1),
        lambda r, job: (
            f"an uneven split is modelled without interleaving, not with vpp = {r['vpp']}"
        ),
        lambda r, job: [1],
    ),
    Rule(
        "interleaving needs a pipeline",
        "vpp",
        lambda c, job: (c["vpp"] > 1) & (c["pp"] == 1),
        lambda r, job: f"vpp = {r['vpp']} needs pp > 1",
        lambda r, job: [1],
    ),
    Rule(
        "schedule and vpp disagree",
        "schedule",
        lambda c, job: (c["vpp"] > 1) != (c["schedule"] == INTERLEAVED),
        lambda r, job: (
            f"schedule {SCHEDULES[r['schedule']]} does not go with vpp = {r['vpp']}: interleaved "
            "needs vpp > 1 and nothing else takes it"
        ),
    ),
    Rule(
        "interleaving needs micro-batches divisible by pp",
        "global_batch_size",
        lambda c, job: (
            (c["vpp"] > 1)
            & (
                (c["global_batch_size"] // np.maximum(c["micro_batch_size"] * c["dp"], 1))
                % c["pp"]
                != 0
            )
        ),
        lambda r, job: (
            f"{r['global_batch_size'] // (r['micro_batch_size'] * r['dp'])} micro-batches are "
            f"not a multiple of pp = {r['pp']}, as interleaving needs"
        ),
    ),
    Rule(
        "sequence not divisible by cp",
        "cp",
        lambda c, job: (c["cp"] > 1) & (job.seq_length % (2 * c["cp"]) != 0),
        lambda r, job: (
            f"2·cp = {2 * r['cp']} does not divide the sequence length {job.seq_length} "
            "(a causal ring gives each rank two blocks)"
        ),
    ),
    Rule(
        "sequence parallelism needs tp",
        "sequence_parallel",
        lambda c, job: (c["sequence_parallel"] == 1) & (c["tp"] == 1),
        lambda r, job: "sequence_parallel needs tp > 1",
        lambda r, job: ["false"],
    ),
    Rule(
        "sequence not divisible by tp",
        "sequence_parallel",
        lambda c, job: (
            (c["sequence_parallel"] == 1)
            & ((job.seq_length // c["cp"]) % np.maximum(c["tp"], 1) != 0)
        ),
        lambda r, job: (
            f"sequence parallelism needs tp = {r['tp']} to divide the "
            f"{job.seq_length // r['cp']} tokens of a context-parallel rank"
        ),
    ),
    Rule(
        "experts",
        "ep",
        _experts_broken,
        lambda r, job: (
            f"ep = {r['ep']} does not divide the {job.model.experts} experts"
            if _moe(job)
            else f"ep = {r['ep']} needs a model with experts"
        ),
        lambda r, job: divisors(job.model.experts) if _moe(job) else [1],
    ),
    Rule(
        "expert width not divisible by etp",
        "etp",
        lambda c, job: job.model.expert_ffn % c["etp"] != 0 if _moe(job) else c["etp"] > 1,
        lambda r, job: (
            f"etp = {r['etp']} does not divide the expert width {job.model.expert_ffn}"
            if _moe(job)
            else f"etp = {r['etp']} needs a model with experts"
        ),
        lambda r, job: divisors(job.model.expert_ffn) if _moe(job) else [1],
    ),
    Rule(
        "expert mesh does not fold",
        "ep",
        lambda c, job: (c["tp"] * c["cp"] * c["dp"]) % (c["etp"] * c["ep"]) != 0,
        lambda r, job: (
            f"etp·ep = {r['etp']}·{r['ep']} does not divide tp·cp·dp = "
            f"{r['tp'] * r['cp'] * r['dp']}"
        ),
    ),
    Rule(
        "experts with tp need sequence parallelism",
        "sequence_parallel",
        lambda c, job: (c["tp"] > 1) & (c["sequence_parallel"] == 0) & _moe(job),
        lambda r, job: "a model with experts needs sequence_parallel when tp > 1",
        lambda r, job: ["true"],
    ),
    Rule(
        "experts fold tp, cp and dp",
        "mesh_order",
        lambda c, job: (c["etp"] * c["ep"] > 1) & ~PP_OUTERMOST[c["mesh_order"]],
        lambda r, job: (
            f"mesh_order {MESH_ORDERS[r['mesh_order']]} puts pp among the ranks that experts fold"
        ),
        lambda r, job: [order for order in MESH_ORDERS if order.endswith("-pp")],
    ),
)


def check(plan: Plan, job: Job) -> None:
    """Raise for the first rule that a resolved plan breaks.

    Raises:
        ConfigError: It names the field, its value, what is allowed and the numbers that disagree.
    """
    row = plan_row(plan)
    columns = {axis: np.array([value]) for axis, value in row.items()}
    for rule in RULES:
        if rule.broken(columns, job)[0]:
            value: object = row[rule.field]
            if rule.field in OPTIONS:
                value = OPTIONS[rule.field][row[rule.field]]
            raise ConfigError(
                rule.message(row, job),
                field=rule.field,
                value=value,
                allowed=rule.allowed(row, job),
            )
