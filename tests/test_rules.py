"""Every rule of a well-formed plan: broken alone, said in words, alike for one and for many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dse
from dse.plan import AXES, MESH_ORDERS, PlanTable, plan_row
from dse.rules import RULES, Job, check, divisors
from hwmodels.errors import ConfigError

pytestmark = pytest.mark.fast

LLAMA = dse.load_model("llama-3-8b")  # 32 layers, 32 heads, 8 key/value heads, f 14336
MIXTRAL = dse.load_model("mixtral-8x7b")  # 8 experts of width 14336
JOBS = (Job(LLAMA, 4096, 64), Job(MIXTRAL, 4096, 64))
REASONS = {rule.reason: rule for rule in RULES}

# Reason: a job, a plan that breaks this rule alone, and the words that its message must hold.
CASES: dict[str, tuple[Job, dict[str, object], tuple[str, ...]]] = {
    "degrees do not multiply to the chips": (
        JOBS[0], {"tp": 2, "dp": 16}, ("2·1·1·16 = 32", "64 chips")
    ),
    "heads not divisible by tp": (
        # 12 divides f = 14592 and is a multiple of 4 key/value heads, not a divisor of 32 heads.
        Job(LLAMA.replace(kv_heads=4, ffn=14592), 4096 * 3, 768),
        {"tp": 12, "dp": 64, "global_batch_size": 64}, ("tp = 12", "32 attention heads")
    ),
    "kv heads and tp do not divide one another": (
        Job(LLAMA.replace(heads=24, kv_heads=6), 4096, 64), {"tp": 4}, ("tp = 4", "6 key/value")
    ),
    "ffn not divisible by tp": (
        Job(LLAMA.replace(ffn=14338), 4096, 64), {"tp": 4}, ("tp = 4", "14338")
    ),
    "batch not divisible": (
        JOBS[0], {"micro_batch_size": 2, "global_batch_size": 192}, ("192", "2·64 = 128")
    ),
    "layers not divisible": (
        JOBS[0], {"pp": 4, "vpp": 3}, ("4·3 = 12", "32 layers")
    ),
    "uneven split does not fit": (
        JOBS[0], {"pp": 4, "first_stage_layers": 3}, ("first_stage_layers = 3", "pp = 4", "32")
    ),
    "uneven split with interleaving": (
        JOBS[0], {"pp": 2, "vpp": 2, "first_stage_layers": 12}, ("vpp = 2",)
    ),
    "interleaving needs a pipeline": (JOBS[0], {"vpp": 2}, ("vpp = 2", "pp > 1")),
    "schedule and vpp disagree": (
        JOBS[0], {"pp": 2, "vpp": 2, "schedule": "1f1b"}, ("1f1b", "vpp = 2")
    ),
    "interleaving needs micro-batches divisible by pp": (
        JOBS[0], {"pp": 4, "vpp": 2, "global_batch_size": 96}, ("6 micro-batches", "pp = 4")
    ),
    "sequence not divisible by cp": (
        Job(LLAMA, 4100, 64), {"cp": 8}, ("2·cp = 16", "4100")
    ),
    "sequence parallelism needs tp": (JOBS[0], {"sequence_parallel": True}, ("tp > 1",)),
    "sequence not divisible by tp": (
        Job(LLAMA, 4100, 64), {"tp": 8, "cp": 1}, ("tp = 8", "4100 tokens")
    ),
    "experts": (JOBS[1], {"ep": 16}, ("ep = 16", "8 experts")),
    "expert width not divisible by etp": (
        Job(MIXTRAL.replace(expert_ffn=14338), 4096, 64), {"etp": 4}, ("etp = 4", "14338")
    ),
    "expert mesh does not fold": (
        JOBS[1], {"pp": 16, "ep": 8, "global_batch_size": 64}, ("1·8", "tp·cp·dp = 4")
    ),
    "experts with tp need sequence parallelism": (
        JOBS[1], {"tp": 2, "sequence_parallel": False}, ("experts", "sequence_parallel")
    ),
    "experts fold tp, cp and dp": (
        JOBS[1], {"pp": 2, "ep": 2, "mesh_order": "tp-pp-cp-dp"}, ("tp-pp-cp-dp", "pp")
    ),
}  # fmt: skip


def made(job: Job, fields: dict[str, object]) -> dse.Plan:
    return dse.Plan(**{"global_batch_size": 256, **fields}).resolved(job.num_chips)


def broken(plan: dse.Plan, job: Job) -> list[str]:
    columns = {axis: np.array([value]) for axis, value in plan_row(plan).items()}
    return [rule.reason for rule in RULES if rule.broken(columns, job)[0]]


def test_every_rule_has_a_case() -> None:
    """No rule goes without an example, and reasons are distinct."""
    assert set(CASES) == set(REASONS)
    assert len(REASONS) == len(RULES)


@pytest.mark.parametrize("reason", CASES)
def test_a_plan_breaks_one_rule(reason: str) -> None:
    """The example breaks its rule alone; the error names field, value and the numbers."""
    job, fields, words = CASES[reason]
    plan = made(job, fields)
    assert broken(plan, job) == [reason]
    with pytest.raises(ConfigError) as caught:
        check(plan, job)
    assert caught.value.field == REASONS[reason].field
    assert caught.value.value == getattr(plan, REASONS[reason].field)
    for word in words:
        assert word in str(caught.value), word


@pytest.mark.parametrize("job", JOBS)
def test_a_plain_plan_breaks_none(job: Job) -> None:
    """Pure data parallelism of a divisible batch is always well formed."""
    plan = made(job, {})
    assert broken(plan, job) == []
    check(plan, job)


@pytest.mark.parametrize(
    ("fields", "field", "value"),
    [({"ep": 2}, "ep", 2), ({"etp": 2}, "etp", 2)],
)
def test_experts_need_a_model_with_experts(
    fields: dict[str, object], field: str, value: int
) -> None:
    """A dense model refuses ep and etp under their own names."""
    with pytest.raises(ConfigError, match=f"{field} = {value} needs a model with experts") as e:
        check(made(JOBS[0], fields), JOBS[0])
    assert (e.value.field, e.value.value, e.value.allowed) == (field, value, [1])


@pytest.mark.parametrize(
    ("fields", "fine"),
    [
        ({"first_stage_layers": 2}, True),  # 30 over 3 stages
        ({"last_stage_layers": 5}, True),  # 27 over 3
        ({"first_stage_layers": 7, "last_stage_layers": 5}, True),  # 20 over 2
        ({"first_stage_layers": 6, "last_stage_layers": 5}, False),  # 21 over 2
        ({"first_stage_layers": 16, "last_stage_layers": 16}, False),  # none left for 2
        ({"first_stage_layers": 31}, False),  # 1 over 3
        ({"first_stage_layers": 40}, False),
    ],
)
def test_uneven_splits(fields: dict[str, object], fine: bool) -> None:
    """What the ends leave must fill the stages between them evenly: pp = 4, 32 layers."""
    reasons = broken(made(JOBS[0], {"pp": 4, **fields}), JOBS[0])
    assert reasons == ([] if fine else ["uneven split does not fit"])


@pytest.mark.parametrize(
    ("first", "last", "fine"), [(20, 12, True), (20, 0, True), (20, 11, False)]
)
def test_two_stages_may_both_be_given(first: int, last: int, fine: bool) -> None:
    """With pp = 2 the ends are all there is: they add up to the layers, or one is left open."""
    plan = made(JOBS[0], {"pp": 2, "first_stage_layers": first, "last_stage_layers": last})
    assert (broken(plan, JOBS[0]) == []) is fine


CHOICES: dict[str, list[int]] = {
    "tp": [1, 2, 3, 4, 16], "pp": [1, 2, 3, 4, 64], "cp": [1, 2, 4], "dp": [1, 2, 8, 16, 64],
    "ep": [1, 2, 3, 8], "etp": [1, 2, 5], "vpp": [1, 2, 5], "micro_batch_size": [1, 2, 7],
    "global_batch_size": [1, 64, 256, 1000], "sequence_parallel": [0, 1], "zero": [0, 1, 2, 3],
    "recompute": [0, 1, 2], "schedule": [0, 1, 2], "mesh_order": list(range(len(MESH_ORDERS))),
    "optimizer": [0, 3], "grad_dtype": [0, 1], "master_dtype": [0, 1],
    "first_stage_layers": [0, 0, 2, 31], "last_stage_layers": [0, 0, 2],
}  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), job=st.sampled_from(JOBS))
def test_one_plan_and_many_are_judged_alike(seed: int, job: Job) -> None:
    """The scalar check refuses exactly the rows that a mask marks, for the first mask's reason."""
    rng = np.random.default_rng(seed)
    columns = {axis: rng.choice(values, 30) for axis, values in CHOICES.items()}
    fits = rng.random(30) < 0.7  # else nearly every plan fails at the chip count
    columns["dp"] = np.where(
        fits, np.maximum(64 // (columns["tp"] * columns["pp"] * columns["cp"]), 1), columns["dp"]
    )
    table = PlanTable.from_columns({axis: columns[axis] for axis in AXES})
    masks = [rule.broken(table.columns(), job) for rule in RULES]
    for row in range(len(table)):
        reasons = [rule for rule, mask in zip(RULES, masks, strict=True) if mask[row]]
        plan = table.plan(row)
        if not reasons:
            check(plan, job)
            continue
        with pytest.raises(ConfigError) as caught:
            check(plan, job)
        assert caught.value.field == reasons[0].field
        assert str(reasons[0].message(plan_row(plan), job)) in str(caught.value)


@given(number=st.integers(1, 5000))
def test_divisors(number: int) -> None:
    """All of them, ascending."""
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]
