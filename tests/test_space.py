"""The named plan spaces and what may narrow them."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.plan import AXES, MESH_ORDERS, PlanTable
from dse.rules import RULES, Job, divisors
from dse.workload.config import TransformerConfig
from hwmodels.errors import ConfigError
from search.narrowing import Narrowing, from_flags, narrowing
from search.space import PlanSpace, named_space

pytestmark = pytest.mark.fast


def dense(layers=4, heads=4, kv_heads=2):
    return TransformerConfig(
        name="small",
        family="llama",
        layers=layers,
        hidden=64 * heads,
        ffn=256 * heads,
        heads=heads,
        kv_heads=kv_heads,
        vocab=1000,
        max_seq=512,
        gated=True,
        activation="silu",
        norm="rmsnorm",
        position="rotary",
    )


def moe():
    return dense().model_copy(update={"experts": 4, "topk": 2, "expert_ffn": 512})


def gpt3():
    return TransformerConfig(
        name="gpt3",
        family="gpt2",
        layers=96,
        hidden=12288,
        ffn=49152,
        heads=96,
        vocab=50257,
        max_seq=2048,
        gated=False,
        activation="gelu",
        norm="layernorm",
        position="learned",
        position_rows=2048,
    )


def rows(space, chunk=65_536):
    """Every plan of a space as a tuple of integers in canonical axis order."""
    found = []
    for table in space.chunks(chunk):
        columns = table.columns()
        found += list(zip(*(columns[axis].tolist() for axis in AXES), strict=True))
    return found


def physical_order(row):
    """The mesh order with the dimensions of size 1 left out: equal orders are one plan."""
    plan = dict(zip(AXES, row, strict=True))
    dims = MESH_ORDERS[plan["mesh_order"]].split("-")
    return tuple(dim for dim in dims if plan[dim] > 1 or dim == "tp")


def brute_force(job, batch, full):
    """Every well-formed plan as a row, from a plain product over all values of all axes."""
    degrees = divisors(job.num_chips)
    choices = {
        "tp": degrees,
        "pp": degrees,
        "dp": degrees,
        "cp": degrees,
        "ep": degrees if job.model.experts else [1],
        "etp": degrees if job.model.experts else [1],
        "vpp": divisors(job.model.layers),
        "micro_batch_size": divisors(batch),
        "global_batch_size": [batch],
        "sequence_parallel": [0, 1],
        "zero": [0, 1, 2, 3] if full else [1],
        "recompute": [0, 1, 2],
        "schedule": [0, 1, 2] if full else [0, 1],
        "mesh_order": range(len(MESH_ORDERS)) if full else [0],
    }
    grids = np.meshgrid(*choices.values(), indexing="ij", sparse=True)
    sparse = dict(zip(choices, grids, strict=True))
    chips = sparse["tp"] * sparse["pp"] * sparse["dp"] * sparse["cp"]
    whole = np.broadcast_to(chips == job.num_chips, tuple(len(v) for v in choices.values()))
    places = np.nonzero(whole)
    columns = {
        axis: np.asarray(values)[place]
        for (axis, values), place in zip(choices.items(), places, strict=True)
    }
    for axis in AXES:
        columns.setdefault(axis, np.zeros(len(places[0]), dtype=np.int64))
    keep = ~((columns["schedule"] == 2) & (columns["pp"] == 1))
    if not full:
        keep &= columns["sequence_parallel"] == (columns["tp"] > 1)
    for rule in RULES:
        keep &= ~rule.broken(columns, job)
    table = np.array([columns[axis][keep] for axis in AXES]).T.tolist()
    found = {}
    order = AXES.index("mesh_order")
    for row in sorted(map(tuple, table)):
        found.setdefault((row[:order], row[order + 1 :], physical_order(row)), row)
    return set(found.values())


@pytest.mark.parametrize("full", [False, True], ids=["compact", "full"])
@pytest.mark.parametrize("model", [dense(), moe()], ids=["dense", "moe"])
def test_a_space_is_the_product_of_its_axes_less_what_the_rules_refuse(model, full):
    """The streamed space equals a plain product of all values filtered by the rules, plan by
    plan.
    """
    job = Job(model, 256, 4)
    space = PlanSpace(named_space("full" if full else "compact"), job, 4)
    expected = brute_force(job, 4, full)
    found = rows(space)
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert space.count() == len(expected)


@settings(max_examples=25, deadline=None)
@given(
    chips=st.sampled_from([1, 2, 6, 12, 16, 24]),
    batch=st.sampled_from([1, 6, 12, 16, 96]),
    layers=st.sampled_from([1, 3, 4, 12]),
    name=st.sampled_from(["compact", "full"]),
    experts=st.booleans(),
)
def test_every_streamed_plan_obeys_every_rule(chips, batch, layers, name, experts):
    """No chunk holds a plan that a rule refuses, and no plan occurs twice."""
    model = dense(layers=layers, heads=12, kv_heads=4)
    if experts:
        model = model.model_copy(update={"experts": 6, "topk": 2, "expert_ffn": 768})
    job = Job(model, 384, chips)
    space = PlanSpace(named_space(name), job, batch)
    for table in space.chunks(1000):
        assert 0 < len(table) <= 1000
        columns = table.columns()
        for rule in RULES:
            assert not rule.broken(columns, job).any(), rule.reason
    found = rows(space)
    assert len(found) == len(set(found)) == space.count()


def test_the_cut_into_chunks_does_not_matter():
    """Chunks of any size hold the same plans in the same order, under one dictionary of values."""
    space = PlanSpace(named_space("full"), Job(dense(), 256, 8), 16)
    whole = rows(space)
    assert rows(space, 17) == whole
    assert rows(space, 1) == whole
    assert all(table.values is space.values for table in space.chunks(50))


def test_values_ascend_so_that_codes_order_plans():
    """Canonical order can be read off codes: every dictionary of values ascends strictly."""
    for name in ("compact", "full"):
        space = PlanSpace(named_space(name), Job(moe(), 256, 16), 16)
        assert all((np.diff(values) > 0).all() for values in space.values.values())


def test_size_of_the_spaces_of_gpt3():
    """GPT-3 175B, 1,024 chips, batch 1,536, s 2,048: the compact space holds 37,590 plans.

    Layouts of 1,024 = 2^10 into four powers of two: 13·12·11/6 = 286. tp <= 32 and pp <= 32
    (both divide 96 = 2^5·3), dp <= 512 (divides 1,536 = 2^9·3), cp <= 1,024 (2·cp divides
    2,048): the full space multiplies compact's rows by the ZeRO stages, GPipe, sequence
    parallelism off and mesh orders.
    """
    job = Job(gpt3(), 2048, 1024)
    compact = PlanSpace(named_space("compact"), job, 1536)
    layouts = {row[:4] for row in rows(compact)}
    by_hand = {
        (2**a, 2**b, 2**c, 2 ** (10 - a - b - c))
        for a, b, c in product(range(6), range(6), range(10))
        if a + b + c <= 10
    }
    # tp = 32 with cp large leaves fewer than tp tokens a rank: (s/cp) % tp
    by_hand = {row for row in by_hand if (2048 // row[3]) % row[0] == 0}
    assert layouts == by_hand
    assert compact.count() == 37_590
    assert PlanSpace(named_space("full"), job, 1536).count() == 1_446_000


def test_compact_lies_within_full():
    """The compact space is a subset of the full one."""
    job = Job(moe(), 256, 8)
    compact = set(rows(PlanSpace(named_space("compact"), job, 8)))
    assert compact < set(rows(PlanSpace(named_space("full"), job, 8)))


NARROWINGS = {
    "tp": [(2,), (1, 4)],
    "pp": [(1,), (2, 4)],
    "vpp": [(1,), (2,)],
    "micro_batch_size": [(1,), (2, 8)],
    "zero": [(0,), (1, 3)],
    "recompute": [(2,), (0, 1)],
    "schedule": [(0,), (1, 2)],
    "sequence_parallel": [(0,), (1,)],
}


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(NARROWINGS)), st.sampled_from([0, 1]), max_size=4))
def test_narrowing_filters_the_space(picks):
    """A narrowed space is exactly the plans of the whole space whose values it allows."""
    job = Job(dense(), 256, 8)
    allowed = {axis: NARROWINGS[axis][pick] for axis, pick in picks.items()}
    whole = rows(PlanSpace(named_space("full"), job, 8))
    kept = rows(PlanSpace(named_space("full"), job, 8, Narrowing(allowed)))
    position = {axis: AXES.index(axis) for axis in allowed}
    expected = [r for r in whole if all(r[position[a]] in allowed[a] for a in allowed)]
    assert sorted(kept) == sorted(expected)


def test_narrowing_of_micro_batches_a_step():
    """num_microbatches, which follows from three axes, narrows like one."""
    job = Job(dense(), 256, 4)
    chosen = narrowing({"num_microbatches": 4})
    kept = rows(PlanSpace(named_space("compact"), job, 8, chosen))
    batch, micro, dp = (
        AXES.index(axis) for axis in ("global_batch_size", "micro_batch_size", "dp")
    )
    assert kept
    assert {row[batch] // (row[micro] * row[dp]) for row in kept} == {4}


def test_a_mesh_order_is_found_under_its_first_name():
    """Fixing an order that coincides with the canonical one for lack of cp keeps those plans."""
    job = Job(dense(), 256, 8)
    # without cp, tp-cp-pp-dp and tp-pp-cp-dp are the same placement; the space names it the former
    chosen = narrowing({"mesh_order": "tp-pp-cp-dp", "cp": 1, "pp": 2, "dp": 2})
    kept = rows(PlanSpace(named_space("full"), job, 8, chosen))
    assert kept
    order = AXES.index("mesh_order")
    assert {row[order] for row in kept} == {MESH_ORDERS.index("tp-cp-pp-dp")}


def test_tp_span_keeps_groups_within_a_node():
    """With 12 chips a node, tp groups of 8 straddle hosts and groups of 6 do not."""
    job = Job(dense(heads=24, kv_heads=24), 384, 48)
    chosen = narrowing(tp_span="node", chips_per_node=12)
    space = PlanSpace(named_space("compact"), job, 48, chosen)
    assert {row[0] for row in rows(space)} == {1, 2, 3, 4, 6, 12}


def test_settings_replace_the_defaults():
    """Optimizer and dtypes vary in no space; fixing one sets it in every plan."""
    job = Job(dense(), 256, 4)
    plain = PlanSpace(named_space("compact"), job, 4)
    chosen = narrowing({"optimizer": "adam-8bit", "first_stage_layers": 1, "pp": 2})
    space = PlanSpace(named_space("compact"), job, 4, chosen)
    plans = [table.plan(row) for table in space.chunks() for row in range(len(table))]
    assert plans
    assert {plan.optimizer for plan in plans} == {"adam-8bit"}
    assert {plan.first_stage_layers for plan in plans} == {1}
    assert {plan.vpp for plan in plans} == {1}
    assert plain.axes["optimizer"] == ["adam"]


@pytest.mark.parametrize(
    ("fix", "field", "text"),
    [
        ({"tpp": "8"}, "tpp", "did you mean 'tp'?"),
        ({"tp": "0"}, "tp", "an integer from 1"),
        ({"tp": "1e3"}, "tp", "an integer from 1"),
        ({"tp": "-2"}, "tp", "an integer from 1"),
        ({"tp": True}, "tp", "an integer from 1"),
        ({"zero": "4"}, "zero", "0, 1, 2, 3"),
        ({"recompute": "ful"}, "recompute", "did you mean 'full'?"),
        ({"sequence_parallel": "NO"}, "sequence_parallel", "true, false"),
        ({"schedule": "zb-h1"}, "schedule", "1f1b, interleaved, gpipe"),
    ],
)
def test_impossible_narrowing_is_refused_by_name(fix, field, text):
    """An unknown axis or a value no plan can have is an error that says what is allowed."""
    with pytest.raises(ConfigError) as caught:
        narrowing(fix)
    assert caught.value.field == field
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("fix", "allow", "span"),
    [
        ({"tp": 8}, {"tp": [2, 4]}, None),
        ({"tp": 16}, {}, "node"),
        ({"schedule": "interleaved", "vpp": 1}, {}, None),
        ({"schedule": "gpipe"}, {"vpp": [2, 4]}, None),
        ({"sequence_parallel": "true", "tp": 1}, {}, None),
        ({"global_batch_size": 32}, {}, None),
    ],
)
def test_contradictory_narrowing_is_refused(fix, allow, span):
    """Two statements that cannot hold together are an input error, not an empty space."""
    with pytest.raises(ConfigError, match="contradict"):
        narrowing(fix, allow, tp_span=span, chips_per_node=8, global_batch_size=64)


def test_compatible_statements_intersect():
    """--fix within --allow, and schedules beside vpp 1, are no contradiction."""
    chosen = narrowing({"tp": 4}, {"tp": [2, 4], "vpp": [1, 2], "schedule": ["1f1b"]})
    assert chosen.allowed["tp"] == (4,)
    assert chosen.allowed["vpp"] == (1, 2)


def test_flags_become_statements():
    """Repeated flags: axes may be spelled with dashes, repeats must agree."""
    assert from_flags(["micro-batch-size=2"], ["zero=0,1"]) == (
        {"micro_batch_size": "2"},
        {"zero": ["0", "1"]},
    )
    with pytest.raises(ConfigError, match="contradicts"):
        from_flags(["tp=8", "tp=4"], [])
    with pytest.raises(ConfigError, match="AXIS=VALUE"):
        from_flags(["tp"], [])
    with pytest.raises(ConfigError, match="AXIS=VALUE"):
        from_flags([], ["zero="])


def test_values_of_another_space_are_refused_with_its_name():
    """compact holds ZeRO-1 only: fixing zero=3 there points to full."""
    with pytest.raises(ConfigError, match="full"):
        PlanSpace(named_space("compact"), Job(dense(), 256, 4), 4, narrowing({"zero": 3}))
    with pytest.raises(ConfigError, match="compact, full"):
        named_space("huge")


def test_a_narrowing_may_leave_no_plan():
    """tp=3 on 4 chips is well formed; the space is empty and says why where a rule ended it."""
    job = Job(dense(), 256, 4)
    assert rows(PlanSpace(named_space("full"), job, 4, narrowing({"tp": 3}))) == []
    space = PlanSpace(named_space("full"), job, 2, narrowing({"dp": 4}))
    assert rows(space) == []
    assert space.refused == {"batch not divisible": 1}


def test_a_table_gives_its_plans_back():
    """A streamed row as a Plan and back is the same row."""
    space = PlanSpace(named_space("full"), Job(moe(), 256, 4), 4)
    table = next(iter(space.chunks(64)))
    plans = [table.plan(row) for row in range(len(table))]
    again = PlanTable.from_plans(plans)
    assert all((again.column(axis) == table.column(axis)).all() for axis in AXES)
