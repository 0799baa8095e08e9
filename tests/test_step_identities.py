"""Identities of the evaluator over random plans, models, machines and stacks."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dse
from dse.evaluation import stage_memory
from dse.items import CommItem, Itemised
from dse.keys import packed, unpacked
from dse.plan import AXES, GRAD_DTYPES, MASTER_DTYPES, MESH_ORDERS, OPTIMIZERS, PlanTable
from dse.rules import RULES, Job
from dse.step import PARTS, StepColumns
from dse.workload.counts import model_flop, parameters
from hwmodels import load_cluster
from hwmodels.table import HardwareTable

CHIPS = 32
SEQ_LENGTH = 2048
SEEDS = 4
# Dense with copied and with divided key/value heads, tied and untied ends; experts.
MODELS = ("llama-3-8b", "gpt2-large", "mixtral-8x7b")
MACHINES = (
    "dgx-1-v100-32gb",
    "dgx-a100-640gb",
    "dgx-h100",
    "dgx-b200",
    "8x-mi300x",
    "tpuv4-pod",
    "tpuv5p-pod",
)
STACKS = tuple(dse.list_stacks())
CHOICES: dict[str, tuple[int, ...]] = {
    "tp": (1, 2, 4, 8, 16),
    "pp": (1, 2, 4, 8),
    "cp": (1, 2, 4),
    "ep": (1, 2, 4, 8),
    "etp": (1, 2, 4),
    "vpp": (1, 2),
    "micro_batch_size": (1, 2, 4),
    "global_batch_size": (64, 192),
    "sequence_parallel": (0, 1),
    "zero": (0, 1, 2, 3),
    "recompute": (0, 1, 2),
    "schedule": (0, 1, 2),
    "mesh_order": tuple(range(len(MESH_ORDERS))),
    "optimizer": tuple(range(len(OPTIMIZERS))),
    "grad_dtype": tuple(range(len(GRAD_DTYPES))),
    "master_dtype": tuple(range(len(MASTER_DTYPES))),
    "first_stage_layers": (0, 0, 2, 3),
    "last_stage_layers": (0, 0, 2, 5),
}


@cache
def step_model(model: str, machine: str, stack: str) -> dse.StepModel:
    cluster = load_cluster(machine, num_chips=CHIPS)
    precision = "bf16" if "bf16" in cluster.chip.peak_flop_per_s else "fp16"
    workload = dse.make_workload(_config(model), SEQ_LENGTH, precision)
    return dse.StepModel(workload, HardwareTable.of([cluster]), dse.load_stack(stack))


@cache
def _config(model: str) -> dse.TransformerConfig:
    config = dse.load_model(model)
    return config.replace(position_rows=SEQ_LENGTH, max_seq=SEQ_LENGTH) if (
        config.position == "learned"
    ) else config  # fmt: skip


@cache
def random_plans(model: str, seed: int, count: int = 40_000) -> PlanTable:
    """Well-formed plans, a few hundred of them."""
    rng = np.random.default_rng(seed)
    columns = {axis: rng.choice(values, count) for axis, values in CHOICES.items()}
    columns["dp"] = np.maximum(CHIPS // (columns["tp"] * columns["pp"] * columns["cp"]), 1)
    config = _config(model)
    if not config.is_moe:
        columns["ep"] = columns["etp"] = np.ones(count, dtype=np.int64)
    interleaved = columns["vpp"] > 1
    columns["schedule"] = np.where(interleaved, 1, np.where(columns["schedule"] == 1, 0,
                                                            columns["schedule"]))  # fmt: skip
    job = Job(config, SEQ_LENGTH, CHIPS)
    fine = np.ones(count, dtype=bool)
    for rule in RULES:
        fine &= ~rule.broken(columns, job)
    kept = np.flatnonzero(fine)[:150]
    return PlanTable.from_columns({axis: columns[axis][kept] for axis in AXES})


models, machines, stacks = (st.sampled_from(names) for names in (MODELS, MACHINES, STACKS))
seeds = st.integers(0, SEEDS - 1)
cases = st.tuples(models, machines, stacks, seeds)
few = settings(max_examples=12, deadline=None)
fewer = settings(max_examples=5, deadline=None)


def drawn(case: tuple[str, str, str, int]) -> tuple[dse.StepModel, PlanTable]:
    model, machine, stack, seed = case
    return step_model(model, machine, stack), random_plans(model, seed)


def close(one: np.ndarray, other: np.ndarray, relative: float = 1e-12) -> None:
    np.testing.assert_allclose(one, other, rtol=relative, atol=0.0)


def test_the_random_plans_are_many_and_varied() -> None:
    """Every value of every axis occurs among the plans that the other tests use."""
    tables = [random_plans(model, seed) for model in MODELS for seed in range(SEEDS)]
    for axis, values in CHOICES.items():
        found = {int(value) for table in tables for value in np.unique(table.column(axis))}
        assert found == set(values), axis
    assert min(len(table) for table in tables) > 100


# One ledger ------------------------------------------------------------------------------------


@few
@given(case=cases)
def test_the_step_is_the_sum_of_its_parts(case: tuple[str, str, str, int]) -> None:
    """The total is the parts added in their order, to the last bit; no part is negative."""
    step, plans = drawn(case)
    found = step.evaluate(plans)
    total = found.parts[PARTS[0]]
    for name in PARTS[1:]:
        total = total + found.parts[name]
    assert np.array_equal(total, found.step_time_s)
    assert set(found.parts) == set(PARTS)
    assert all(np.all(part >= 0.0) for part in found.parts.values())
    assert np.all(np.isfinite(found.step_time_s))


@few
@given(case=cases, row=st.integers(0, 99))
def test_items_add_up_to_the_parts(case: tuple[str, str, str, int], row: int) -> None:
    """Operators sum to compute, exposed seconds of a group's messages to that group's part."""
    step, plans = drawn(case)
    item = Itemised(step, plans.plan(row))
    parts = {name: float(part[0, 0]) for name, part in item.columns.parts.items()}
    operators = [found.time_s for found in item.operators() if found.kind != "optimizer"]
    close(np.array(sum(operators)), np.array(parts["compute"]), 1e-9)
    for group in ("tp", "cp", "ep", "pp", "dp"):
        messages = [found for found in item.comm() if found.group == group]
        exposed = sum(message.exposed_s for message in messages)
        assert exposed == pytest.approx(parts[group], rel=1e-9, abs=1e-15), group
        for message in messages:
            assert message.exposed_s <= message.time_s * (1 + 1e-9) or group in ("cp", "dp")


@few
@given(case=cases)
def test_stage_memory_agrees_with_the_columns(case: tuple[str, str, str, int]) -> None:
    """The fullest stage of the report is the peak of the columns, on the rank that they name."""
    step, plans = drawn(case)
    peaks = step.memory(plans)
    columns = step.evaluate(plans)
    assert np.array_equal(peaks.peak_bytes, columns.peak_memory_bytes)
    for row in range(0, len(plans), 40):
        stages = stage_memory(step, Itemised(step, plans.plan(row)))
        totals = [stage.total for stage in stages]
        close(np.array(max(totals)), peaks.peak_bytes[row])
        close(np.array(totals[int(peaks.peak_stage[row])]), peaks.peak_bytes[row])


# A batch and its rows --------------------------------------------------------------------------


def same(one: StepColumns, other: StepColumns) -> None:
    close(one.step_time_s, other.step_time_s)
    close(one.peak_memory_bytes, other.peak_memory_bytes)
    assert np.array_equal(one.critical, other.critical)
    scale = np.maximum(one.step_time_s, other.step_time_s)
    for name in PARTS:
        assert np.all(np.abs(one.parts[name] - other.parts[name]) <= 1e-12 * scale), name


@few
@given(case=cases, shuffle=st.integers(0, 2**31))
def test_a_batch_equals_its_rows(case: tuple[str, str, str, int], shuffle: int) -> None:
    """Order and company of plans do not matter: a shuffled table and single rows agree."""
    step, plans = drawn(case)
    whole = step.evaluate(plans)
    order = np.random.default_rng(shuffle).permutation(len(plans))
    mixed = step.evaluate(plans.take(order))
    back = np.argsort(order)
    same(whole, picked(mixed, back))
    for row in order[:3]:
        fresh = dse.StepModel(step.workload, step.hardware, step.stack)
        alone = fresh.evaluate(PlanTable.from_plans([plans.plan(int(row))]))
        same(picked(whole, np.array([row])), alone)


def picked(columns: StepColumns, rows: np.ndarray) -> StepColumns:
    return StepColumns(
        columns.step_time_s[:, rows],
        {name: part[:, rows] for name, part in columns.parts.items()},
        columns.critical[:, rows],
        columns.peak_memory_bytes[rows],
    )


@fewer
@given(model=models, stack=stacks, seed=seeds)
def test_machines_in_one_table_equal_machines_alone(model: str, stack: str, seed: int) -> None:
    """Three rows of hardware give what each gives alone."""
    names = ("dgx-a100-640gb", "dgx-h100", "dgx-b200")  # switches of the last two reduce
    plans = random_plans(model, seed)
    clusters = [load_cluster(name, num_chips=CHIPS) for name in names]
    workload = step_model(model, "dgx-h100", stack).workload
    together = dse.StepModel(workload, HardwareTable.of(clusters), dse.load_stack(stack))
    found = together.evaluate(plans)
    for row, cluster in enumerate(clusters):
        alone = dse.StepModel(workload, HardwareTable.of([cluster]), dse.load_stack(stack))
        one = alone.evaluate(plans)
        close(found.step_time_s[row], one.step_time_s[0])
        for name in PARTS:
            difference = np.abs(found.parts[name][row] - one.parts[name][0])
            assert np.all(difference <= 1e-12 * one.step_time_s[0]), name


@given(model=models, seed=seeds, axes=st.sets(st.sampled_from(AXES), min_size=1))
def test_packed_keys_are_the_distinct_combinations(model: str, seed: int, axes: set[str]) -> None:
    """Equal codes mean equal columns, and a code unpacks to its combination."""
    plans = random_plans(model, seed)
    names = [axis for axis in AXES if axis in axes]
    code, size = packed(plans, names)
    found, place = np.unique(code, return_inverse=True)
    columns = unpacked(found, plans.values, names)
    matrix = np.stack([plans.column(axis) for axis in names])
    assert len(found) == np.unique(matrix, axis=1).shape[1] <= size
    assert np.array_equal(np.stack([columns[axis][place] for axis in names]), matrix)


# Better machines -------------------------------------------------------------------------------


def scaled(step: dse.StepModel, name: str, factor: float) -> dse.StepModel:
    return dse.StepModel(step.workload, step.hardware.scaled(name, factor), step.stack)


FASTER = ("peak_flop_per_s", "memory_bytes_per_s", "vector_flop_per_s", "bytes_per_s")


@few
@given(case=cases, name=st.sampled_from(FASTER), factor=st.sampled_from([1.01, 1.3, 4.0]))
def test_a_faster_machine_is_never_slower(
    case: tuple[str, str, str, int], name: str, factor: float
) -> None:
    """A higher peak, memory rate, vector rate or link rate never lengthens a step."""
    step, plans = drawn(case)
    column = f"{name}.{step.workload.precision}" if name == "peak_flop_per_s" else name
    before = step.evaluate(plans).step_time_s
    after = scaled(step, column, factor).evaluate(plans).step_time_s
    assert np.all(after <= before * (1 + 1e-12))


@few
@given(case=cases, factor=st.sampled_from([0.0, 0.5, 0.99]))
def test_lower_latency_is_never_slower(case: tuple[str, str, str, int], factor: float) -> None:
    """A shorter message start never lengthens a step."""
    step, plans = drawn(case)
    before = step.evaluate(plans).step_time_s
    after = scaled(step, "latency_s", factor).evaluate(plans).step_time_s
    assert np.all(after <= before * (1 + 1e-12))


# Floors ----------------------------------------------------------------------------------------


@few
@given(case=cases)
def test_no_prediction_beats_the_roofline(case: tuple[str, str, str, int]) -> None:
    """The floor is the model's operations with the causal half of attention, three forward
    passes and nothing repeated, at the dense peak of all chips: no memory traffic, no messages.
    """
    step, plans = drawn(case)
    batch = plans.column("global_batch_size")
    one = model_flop(step.workload.config, SEQ_LENGTH, convention="causal")
    peak = step.hardware.chip[f"peak_flop_per_s.{step.workload.precision}"][0]
    floor = one * batch / (CHIPS * peak)
    found = step.evaluate(plans)
    assert np.all(found.step_time_s[0] >= floor)
    # Compute and bubble of the critical stage cover that stage's share, so their sum does too.
    assert np.all(found.parts["compute"] + found.parts["bubble"] > 0.0)


@few
@given(case=cases)
def test_the_bound_is_below_the_step(case: tuple[str, str, str, int]) -> None:
    """The search's lower bound never exceeds the price, and is worth something."""
    step, plans = drawn(case)
    bound, price = step.bound_s(plans), step.evaluate(plans).step_time_s
    assert np.all(bound <= price * (1 + 1e-12))
    assert np.all(bound > 0.0)


# Bytes -----------------------------------------------------------------------------------------


def messages(model: str, stack: str = "megatron-core", **fields: object) -> list[CommItem]:
    step = step_model(model, "dgx-h100", stack)
    plan = dse.Plan(**{"global_batch_size": 64, **fields}).resolved(CHIPS)
    return Itemised(step, plan).comm()


@few
@given(case=cases, row=st.integers(0, 99))
def test_a_degree_of_one_moves_nothing(case: tuple[str, str, str, int], row: int) -> None:
    """Tp, cp, pp of 1 have no message and no seconds; dp and cp of 1 only scalars and experts."""
    step, plans = drawn(case)
    plan = plans.plan(row)
    item = Itemised(step, plan)
    groups = [message.group for message in item.comm()]
    for dim in ("tp", "cp", "pp"):
        if getattr(plan, dim) == 1:
            assert dim not in groups
            assert item.columns.parts[dim][0, 0] == 0.0
    if plan.ep == 1 and plan.etp == 1:
        assert "ep" not in groups
        assert item.columns.parts["ep"][0, 0] == 0.0
    if plan.dp == 1 and plan.cp == 1:
        for message in item.comm():
            if message.group == "dp":
                assert message.bytes_per_call == 4 or message.name.startswith("expert")


def test_context_parallel_company_does_not_change_a_plan_without_it() -> None:
    """A plan with cp = 1 costs the same beside plans with cp > 1, and its part is exactly 0."""
    step = step_model("llama-3-8b", "dgx-h100", "megatron-core")
    plans = random_plans("llama-3-8b", 0)
    without = np.flatnonzero(plans.column("cp") == 1)
    assert 0 < len(without) < len(plans)
    among = picked(step.evaluate(plans), without)
    alone = step.evaluate(plans.take(without))
    same(among, alone)
    assert np.all(alone.parts["cp"] == 0.0)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("ep", [2, 4])
def test_expert_traffic_does_not_depend_on_tp(tp: int, ep: int) -> None:
    """Each tp rank sends its slice: all slices together are s b topk h elements of 2 bytes."""
    config = _config("mixtral-8x7b")
    found = [m for m in messages("mixtral-8x7b", tp=tp, ep=ep) if m.collective == "all_to_all"]
    assert sorted(m.name for m in found) == sorted(
        f"{name} ({way})" for name in ("dispatch", "combine") for way in ("forward", "backward")
    )
    for message in found:
        assert message.size == ep
        assert message.bytes_per_call * tp == 2 * SEQ_LENGTH * config.topk * config.hidden


def test_expert_gradients_are_summed_over_their_copies() -> None:
    """Dense gradients meet on dp ranks, experts' on tp cp dp / (etp ep): here 4 and 8 of 32."""
    found = {m.name: m for m in messages("mixtral-8x7b", tp=8, ep=4)}
    assert found["dense gradients"].size == 4
    assert found["expert gradients"].size == 8
    experts = parameters(_config("mixtral-8x7b")).block.experts
    assert found["expert gradients"].bytes_per_call == 4 * 32 * experts / 4


@pytest.mark.parametrize("order", MESH_ORDERS)
def test_copies_of_undivided_experts_lie_where_their_ranks_do(order: str) -> None:
    """Without ep and etp every rank of tp, cp and dp has all experts: 16 ranks, in nodes of 8,
    spread over two nodes, or over all four where pp = 2 lies between them.
    """
    fields = {"tp": 2, "cp": 2, "pp": 2, "mesh_order": order, "micro_batch_size": 1}
    found = {m.name: m for m in messages("mixtral-8x7b", **fields)}
    message = found["expert gradients"]
    # Faster than pp: tp 2, and cp 2 and dp 4 where the order names them first.
    before = order.split("-pp")[0].split("-")
    faster = {"tp": 2, "cp": 2, "dp": 4}
    inside = int(np.prod([faster[dim] for dim in before]))
    assert message.size == 16
    assert message.span_nodes == (2 if inside >= 8 else 4)


def test_copied_key_and_value_heads_sum_their_gradients() -> None:
    """Tp 16 copies each of 8 heads twice: pairs of neighbours sum 2 h d fp32 gradients a layer."""
    found = {m.name: m for m in messages("llama-3-8b", tp=16)}
    message = found["key and value gradients"]
    assert (message.group, message.collective, message.size) == ("tp", "all_reduce", 2)
    assert message.bytes_per_call == 4 * 32 * 2 * 4096 * 128
    assert "key and value gradients" not in {m.name for m in messages("llama-3-8b", tp=8)}


def test_an_end_is_gathered_on_its_own_stage() -> None:
    """With ZeRO-3 and several stages the last gathers the head's unit and not the embedding."""
    units = {"embedding", "head"}
    for pp, expected in ((1, units), (2, {"head"})):
        found = messages("llama-3-8b", "fsdp2", zero=3, pp=pp)
        names = {m.name.split()[1] for m in found if m.name.startswith("dense")}
        assert names & units == expected


def test_scalars_are_exposed_whole() -> None:
    """Nothing hides the gradient norm and the average of the loss."""
    scalars = [m for m in messages("llama-3-8b", zero=1) if m.bytes_per_call == 4]
    assert len(scalars) == 2
    assert all(message.exposed_s == message.time_s > 0.0 for message in scalars)


def test_a_single_chip_sends_nothing() -> None:
    """One device has no message at all, and its report adds up."""
    report = dse.evaluate(
        "gpt2-large", "dgx-h100", dse.Plan(global_batch_size=2), chips=1, seq_length=1024
    )
    assert report.comm == ()
    assert sum(seconds for _, seconds in report.parts_s.in_order()) == report.step_time_s


@fewer
@given(case=cases)
def test_a_higher_stage_of_zero_never_holds_more_state(case: tuple[str, str, str, int]) -> None:
    """Weights, gradients and optimizer shrink from ZeRO-0 to ZeRO-3, whatever else a plan has."""
    step, plans = drawn(case)
    columns = plans.columns()
    held = []
    for zero in range(4):
        table = PlanTable.from_columns({**columns, "zero": np.full(len(plans), zero)})
        tables = step.tables(table)
        held.append(tables.sync.state_bytes[:, tables.at_sync])
    for lower, higher in pairwise(held):
        assert np.all(higher <= lower * (1 + 1e-12))
    shared = (columns["dp"] * columns["cp"]) > 1
    assert np.all(held[1][:, shared] < held[0][:, shared])


def test_the_micro_batch_does_not_change_the_work() -> None:
    """Model operations are those of the batch, however it is cut."""
    reports = [
        dse.evaluate(
            "gpt2-large", "dgx-h100", dse.Plan(global_batch_size=64, micro_batch_size=size),
            chips=8, seq_length=1024,
        )
        for size in (1, 2, 4, 8)
    ]  # fmt: skip
    assert len({report.model_flop for report in reports}) == 1
    assert len({report.hardware_flop for report in reports}) == 1
    assert [report.plan.micro_batch_size for report in reports] == [1, 2, 4, 8]
