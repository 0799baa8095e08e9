"""Bytes of a device: state by recipe, activations by layout, what is alive on which stage."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dse
from dse.evaluation import stage_memory
from dse.items import Itemised
from dse.plan import GRAD_DTYPES, MASTER_DTYPES, OPTIMIZERS, RECOMPUTE
from dse.precision import parameter_bytes
from dse.report import StageMemory
from dse.tables import ends_table, layer_table
from dse.workload.counts import kv_bytes_per_token
from hwmodels import load_cluster
from hwmodels.errors import InfeasibleError
from hwmodels.table import HardwareTable

pytestmark = pytest.mark.fast

S = 2048
GPT3 = dse.load_model("korthikanti-175b")


@cache
def step_model(model: dse.TransformerConfig, chips: int, stack: str, precision: str = "bf16",
               seq_length: int = S) -> dse.StepModel:  # fmt: skip
    cluster = load_cluster("dgx-h100", num_chips=chips)
    workload = dse.make_workload(model, seq_length, precision)
    return dse.StepModel(workload, HardwareTable.of([cluster]), dse.load_stack(stack))


def stages(
    plan: dse.Plan, chips: int, model: dse.TransformerConfig = GPT3, stack: str = "megatron-2022"
) -> tuple[StageMemory, ...]:
    step = step_model(model, chips, stack)
    return stage_memory(step, Itemised(step, plan.resolved(chips)))


def layer_bytes(
    model: dse.TransformerConfig,
    stack: str,
    *,
    recompute: str = "none",
    precision: str = "bf16",
    sequence_parallel: bool = False,
    seq_length: int = S,
    **degrees: int,
) -> tuple[float, float]:
    """Saved and working bytes of a layer."""
    step = step_model(model, 64, stack, precision, seq_length)
    names = ("tp", "cp", "ep", "etp", "micro_batch_size")
    keys = {name: np.array([degrees.get(name, 1)]) for name in names}
    keys["sequence_parallel"] = np.array([int(sequence_parallel)])
    keys["recompute"] = np.array([RECOMPUTE.index(recompute)])
    table = layer_table(step.pricing, seq_length, keys)
    return float(table.saved_bytes[0]), float(table.working_bytes[0])


# State -----------------------------------------------------------------------------------------


# Bytes a parameter: weight, gradient, master, moments, by the table of recipes of the sheet.
@pytest.mark.parametrize(
    ("precision", "optimizer", "grad", "master", "expected"),
    [
        ("fp32", "adam", "fp32", "none", (4, 4, 0, 8)),
        ("fp32", "adam", "fp32", "fp32", (4, 4, 0, 8)),  # fp32 weights are their own master
        ("bf16", "adam", "fp32", "fp32", (2, 4, 4, 8)),  # 18
        ("bf16", "adam", "bf16", "fp32", (2, 2, 4, 8)),  # 16
        ("bf16", "adam-bf16", "bf16", "none", (2, 2, 0, 4)),  # 8
        ("bf16", "sgd-momentum", "fp32", "fp32", (2, 4, 4, 4)),  # 14
        ("bf16", "adam-8bit", "bf16", "fp32", (2, 2, 4, 2 + 8 / 256)),  # 10.03
        ("bf16", "adam-8bit", "bf16", "none", (2, 2, 0, 2 + 8 / 256)),  # 6.03
        ("fp8", "adam", "fp32", "fp32", (3, 4, 4, 8)),  # 19: 16-bit weight and one fp8 copy
    ],
)
def test_recipes(
    precision: str, optimizer: str, grad: str, master: str, expected: tuple[float, ...]
) -> None:
    """Each recipe stores what the published tables say."""
    found = parameter_bytes(
        precision,
        np.array([GRAD_DTYPES.index(grad)]),
        np.array([MASTER_DTYPES.index(master)]),
        np.array([OPTIMIZERS.index(optimizer)]),
    )
    stored = (found.weight, found.gradient, found.master, found.moments)
    assert tuple(float(column[0]) for column in stored) == expected


# Adam reads gradient 4, master 4, moments 8, and writes master, moments and the bf16 weight: 30.
@pytest.mark.parametrize(
    ("precision", "optimizer", "moved"),
    [("bf16", "adam", 30), ("fp32", "adam", 28), ("fp32", "sgd-momentum", 20)],
)
def test_update_traffic(precision: str, optimizer: str, moved: float) -> None:
    """Bytes an optimizer moves for a parameter that it owns."""
    found = parameter_bytes(
        precision, np.array([0]), np.array([0]), np.array([OPTIMIZERS.index(optimizer)])
    )
    assert found.update[0] == moved


# ZeRO over n replicas of 18 bytes: 18, 6 + 12/n, 2 + 16/n, 18/n.
@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize(
    ("zero", "whole", "shared"), [(0, 18, 0), (1, 6, 12), (2, 2, 16), (3, 0, 18)]
)
def test_zero_shards_over_dp_and_cp(zero: int, whole: float, shared: float, cp: int) -> None:
    """Context parallelism replicates weights: its ranks shard the state as those of dp do."""
    plan = dse.Plan(tp=8, cp=cp, zero=zero, global_batch_size=8)
    (found,) = stages(plan, 64)
    held = found.weights + found.gradients + found.optimizer
    (unsharded,) = stages(plan.model_copy(update={"zero": 0}), 64)
    parameters = (unsharded.weights + unsharded.gradients + unsharded.optimizer) / 18
    assert held == pytest.approx(parameters * (whole + shared / 8), rel=1e-12)


def test_experts_shard_over_their_own_copies() -> None:
    """Mixtral on 64 devices, tp 8, ep 8: dense state over 8 replicas, experts over 8 of 64."""
    mixtral = dse.load_model("mixtral-8x7b")
    plan = dse.Plan(tp=8, ep=8, global_batch_size=8)
    (one,) = stages(plan, 64, mixtral, "megatron-core")
    (none,) = stages(plan.model_copy(update={"zero": 0}), 64, mixtral, "megatron-core")
    assert one.optimizer == none.optimizer / 8
    # Two experts of eight a device, ep 4: 32 layers of 2 * 3 h f_e, copied on 16 ranks.
    (wide,) = stages(dse.Plan(tp=8, ep=4, global_batch_size=8), 64, mixtral, "megatron-core")
    experts = 32 * 3 * 4096 * 14336
    dense = none.weights / 2 - experts
    assert wide.weights == 2 * (dense + 2 * experts)
    assert wide.optimizer == 12 * (dense / 8 + 2 * experts / 16)


# Activations -----------------------------------------------------------------------------------

UNIT = S * 12288  # s b h
SCORES = 5 * S * 96 * S  # 5 a s^2 b


# The table of layouts of the sheet, for a 16-bit GPT block with dropout.
@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ({}, 34 * UNIT + SCORES),
        ({"tp": 8}, (10 + 24 / 8) * UNIT + SCORES / 8),
        ({"tp": 8, "sequence_parallel": True}, (34 * UNIT + SCORES) / 8),
        ({"tp": 8, "recompute": "selective"}, (10 + 24 / 8) * UNIT),
        ({"tp": 8, "sequence_parallel": True, "recompute": "selective"}, 34 * UNIT / 8),
        ({"tp": 8, "recompute": "full"}, 2 * UNIT),
        ({"tp": 8, "sequence_parallel": True, "recompute": "full"}, 2 * UNIT / 8),
        ({"cp": 2}, (34 * UNIT + SCORES) / 2),
        ({"cp": 2, "micro_batch_size": 4}, 4 * (34 * UNIT + SCORES) / 2),
    ],
)
def test_saved_bytes_of_a_gpt_layer(layout: dict[str, object], expected: float) -> None:
    """Layouts divide the 34 bytes and the scores as published."""
    assert layer_bytes(GPT3, "megatron-2022", **layout)[0] == expected


# S tokens of Mixtral, tp 4 with sequence parallelism (S = t), etp 1: router 8E/S, permuted input
# and expert output 2 topk h/S each, experts 6 topk f_e/S; attention and norms as a dense layer.
@pytest.mark.parametrize(("etp", "ep"), [(1, 1), (1, 4), (2, 2)])
def test_saved_bytes_of_a_mixture(etp: int, ep: int) -> None:
    """Balanced routing saves the same for any ep; etp repeats what is h wide."""
    h, f, e, topk, t = 4096, 14336, 8, 2, 4
    attention = (4 * 32 * 128 + 4 * 8 * 128 + 4 * 32) / t
    stream = (8 * h + 2 * 4) / t
    routed = (8 * e + 2 * (2 * topk * h * etp) + 6 * topk * f) / t
    found, _ = layer_bytes(
        dse.load_model("mixtral-8x7b"), "megatron-core", tp=t, ep=ep, etp=etp,
        sequence_parallel=True,
    )  # fmt: skip
    assert found == pytest.approx(S * (attention + stream + routed), rel=1e-12)


def test_a_linear_that_keeps_gathered_inputs_saves_more() -> None:
    """Without rebuilding them qkv and fc1 hold whole inputs: 34/t becomes 30/t + 4."""
    stack = dse.load_stack("megatron-2022").model_copy(update={"rebuilds_sharded_inputs": False})
    step = step_model(GPT3, 64, "megatron-2022")
    kept = dse.StepModel(step.workload, step.hardware, stack)
    keys = {name: np.array([1]) for name in ("cp", "ep", "etp", "micro_batch_size")}
    keys |= {"tp": np.array([8]), "sequence_parallel": np.array([1])}
    keys["recompute"] = np.array([RECOMPUTE.index("selective")])
    saved = layer_table(kept.pricing, S, keys).saved_bytes[0]
    assert saved == (30 / 8 + 4) * UNIT


# Llama-3-70B keeps 2 * 80 * 8 * 128 * 2 = 327,680 bytes of K and V a token.
def test_keys_and_values_follow_their_own_heads() -> None:
    """GQA divides what is kept of K and V; query heads do not enter."""
    llama = dse.load_model("llama-3-70b")
    assert kv_bytes_per_token(llama) == 327_680
    more = llama.replace(kv_heads=16)
    difference = layer_bytes(more, "megatron-core")[0] - layer_bytes(llama, "megatron-core")[0]
    assert 80 * difference / S == 327_680


@given(tp=st.sampled_from([1, 2, 4, 8, 16, 32, 64]))
@settings(max_examples=7)
def test_copied_heads_stop_dividing(tp: int) -> None:
    """Beyond 8 ranks K and V no longer shrink: a message of the ring has at least one head."""
    step = step_model(dse.load_model("llama-3-70b"), 64, "megatron-core")
    keys = {name: np.array([1]) for name in ("cp", "ep", "etp", "micro_batch_size", "recompute")}
    keys |= {"tp": np.array([tp]), "sequence_parallel": np.array([0])}
    message = layer_table(step.pricing, S, keys).kv_bytes[0]
    assert message == 4 * S * max(8 / tp, 1) * 128


# Stages ----------------------------------------------------------------------------------------


def activations(**fields: object) -> list[float]:
    """Blocks' activations a stage: without embedding masks and inputs of the head."""
    plan = dse.Plan(**{"tp": 8, "pp": 4, "global_batch_size": 32, **fields})
    found = [stage.activations for stage in stages(plan, 32)]
    return [found[1], found[2]]


def test_schedules_hold_what_they_keep_alive() -> None:
    """24 layers of one micro-batch, times 3 and 2 on ranks 1 and 2 of 1F1B, 32 under GPipe, 3.5
    and 2.5 + 1 with two chunks a device (2 (p-r-1) + p + 1 chunks).
    """
    one = 24 * (34 * UNIT + SCORES) / 8
    assert activations() == [3 * one, 2 * one]
    assert activations(schedule="gpipe") == [32 * one, 32 * one]
    assert activations(vpp=2) == [9 / 2 * one, 7 / 2 * one]


def test_few_micro_batches_limit_what_is_alive() -> None:
    """Two micro-batches in four stages: no rank holds more than two."""
    one = 24 * (34 * UNIT + SCORES) / 8
    assert activations(global_batch_size=2) == [2 * one, 2 * one]


def test_recomputation_trades_memory() -> None:
    """Less is held from none to selective to full; the working set grows instead."""
    found = [
        stages(dse.Plan(tp=8, pp=4, global_batch_size=32, recompute=kind), 32)[1]
        for kind in RECOMPUTE
    ]
    for more, less in pairwise(found):
        assert less.activations < more.activations
        assert less.workspace > more.workspace


def test_embedding_and_head_weigh_on_their_stages() -> None:
    """The first stage has the table and positions, the last the tied copy and the final norm."""
    first, middle, *_, last = stages(dse.Plan(tp=8, pp=4, global_batch_size=32), 32)
    table = 51200 * 12288 // 8
    assert first.weights - middle.weights == 2 * (table + 2048 * 12288)
    assert last.weights - middle.weights == 2 * (table + 2 * 12288)
    (alone,) = stages(dse.Plan(tp=8, global_batch_size=32), 8)
    one_table = table + 2048 * 12288 + 2 * 12288
    assert alone.weights == 4 * middle.weights + 2 * one_table


@pytest.mark.parametrize(("stack", "kept", "beside"), [("megatron-core", 4, 2), ("fsdp2", 4, 6)])
def test_logits(stack: str, kept: int, beside: int) -> None:
    """Four bytes a logit stay; the loss needs two more, or six where it is not fused."""
    llama = dse.load_model("llama-3-8b")
    step = step_model(llama, 64, stack)
    keys = {name: np.array([1]) for name in ("tp", "cp", "micro_batch_size")}
    keys["sequence_parallel"] = np.array([0])
    table = ends_table(step.pricing, S, keys)
    assert table.logits_bytes[0] == kept * S * 128_256
    assert table.loss_bytes[0] == beside * S * 128_256


def test_pipeline_buffers() -> None:
    """Messages of s b h / (c S) 16-bit elements, one buffer to send and one to receive."""
    step = step_model(GPT3, 64, "megatron-2022")
    keys = {"tp": np.array([8, 8, 8]), "cp": np.array([1, 1, 2])}
    keys |= {"micro_batch_size": np.array([1, 1, 1]), "sequence_parallel": np.array([0, 1, 1])}
    table = ends_table(step.pricing, S, keys)
    assert table.buffer_bytes.tolist() == [4 * UNIT, 4 * UNIT / 8, 4 * UNIT / 16]


def test_rank_one_can_be_the_fullest() -> None:
    """A first stage of few layers holds less than the second, which the peak must see."""
    plan = dse.Plan(tp=8, pp=4, global_batch_size=32, first_stage_layers=6, recompute="selective")
    found = stages(plan, 32)
    assert found[1].total == max(stage.total for stage in found) > found[0].total
    step = step_model(GPT3, 32, "megatron-2022")
    peak = step.memory(Itemised(step, plan.resolved(32)).table)
    assert (peak.peak_bytes[0], peak.peak_stage[0]) == (found[1].total, 1)


def test_a_plan_that_does_not_fit_says_by_how_much() -> None:
    """The error has the stage and both figures: what is needed and what the reserve leaves."""
    with pytest.raises(InfeasibleError) as caught:
        dse.evaluate(GPT3, "dgx-h100", dse.Plan(tp=8, global_batch_size=8), chips=8, seq_length=S)
    (needed,) = stages(dse.Plan(tp=8, global_batch_size=8), 8, stack="megatron-core")
    assert caught.value.stage == 0
    assert caught.value.needed_bytes_per_device == needed.total
    assert caught.value.available_bytes_per_device == needed.capacity - needed.reserve
    # 2 GiB and 4 per cent of what a device has.
    assert needed.reserve == 2 * 2**30 + 0.04 * needed.capacity
    assert f"{needed.total / 2**30:.1f} GiB" in str(caught.value)
