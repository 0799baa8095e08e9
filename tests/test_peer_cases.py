"""What users of neighbouring tools asked, and the value that arithmetic gives.

Each test names the question: the tool and its public issue.
"""

from __future__ import annotations

import numpy as np
import pytest

import dse
from dse.block import block_parameters
from dse.items import Itemised
from dse.megatron import read_arguments
from dse.report import Report
from dse.rules import Job, check
from dse.tables import priced_blocks
from hwmodels import load_cluster
from hwmodels.errors import ConfigError
from hwmodels.table import HardwareTable

pytestmark = pytest.mark.fast

LLAMA = dse.load_model("llama-3-8b")


def itemised(
    plan: dse.Plan,
    chips: int,
    *,
    model: dse.TransformerConfig = LLAMA,
    machine: str = "dgx-h100",
    stack: str = "megatron-core",
    seq_length: int = 4096,
) -> Itemised:
    cluster = load_cluster(machine, num_chips=chips)
    workload = dse.make_workload(model, seq_length)
    step = dse.StepModel(workload, HardwareTable.of([cluster]), dse.load_stack(stack))
    return Itemised(step, plan.resolved(chips))


# cli99/llm-analysis #27: link choice depended on the data-parallel degree alone.
@pytest.mark.parametrize(
    ("tp", "dp", "nodes"),
    [(8, 4, 4), (1, 8, 1), (2, 4, 1), (4, 8, 4), (1, 32, 4)],
)
def test_data_parallel_link_follows_the_placement(tp: int, dp: int, nodes: int) -> None:
    """Nodes of 8: behind tp 8 replicas lie on as many nodes, with tp 1 eight share one."""
    chips = tp * dp
    plan = dse.Plan(tp=tp, dp=dp, global_batch_size=2 * dp)
    found = {item.name: item for item in itemised(plan, chips).comm()}
    gradients = found["dense gradients"]
    assert (gradients.size, gradients.span_nodes) == (dp, nodes)
    # Tp 8 in one node leaves a replica one card: 50 GB/s; inside a node the links carry 450 GB/s.
    rate = gradients.bytes_per_call * (dp - 1) / dp / gradients.time_s
    assert rate < 450e9
    assert (rate < 50e9) == (tp == 8)


def test_norm_weights_are_whole_on_every_tp_rank() -> None:
    """The optimizer state of a layer's norms is the same for tp 1 and tp 8; matrices divide."""
    held = []
    for tp in (1, 8):
        found = itemised(dse.Plan(tp=tp, dp=1, global_batch_size=1, zero=0), tp)
        pricing = found.model.pricing
        flag = bool(found.plan.sequence_parallel)
        blocks, shapes = priced_blocks(pricing, 4096, found.keys, sequence_parallel=flag)
        norms = [op for op in blocks.layer.operators if op.name in ("norm 1", "norm 2")]
        count = sum(float(shapes.total(op.weights, op.layout)[0]) for op in norms)
        rest = float(block_parameters(blocks.layer, shapes).dense[0]) - count
        held.append((12 * count, rest))
    assert held[0][0] == held[1][0] == 12 * 2 * 4096
    assert held[0][1] == 8 * held[1][1]


# cli99/llm-analysis #21: a latency far below reality, without the efficiency behind it.
def test_the_report_names_the_efficiency() -> None:
    """Every report lists the kernel parameters that it used, none of them ideal here."""
    report = dse.evaluate(LLAMA, "dgx-1-v100-32gb", dse.Plan(tp=8, global_batch_size=8),
                          chips=8, precision="fp16", must_fit=False)  # fmt: skip
    for name in ("matmul_efficiency.fp16", "memory_efficiency", "attention_efficiency"):
        assert 0.0 < report.kernel_parameters[name] < 1.0
    assert not any("bound" in warning for warning in report.warnings)


@pytest.mark.parametrize("name", ["matmul_efficiency.bf16", "memory_efficiency"])
def test_an_ideal_efficiency_is_called_a_bound(name: str) -> None:
    """Where an efficiency is 1.0 the report says that its time is a bound, and for which."""
    cluster = load_cluster("dgx-h100", num_chips=8)
    kernel = {**cluster.chip.kernel, name: 1.0}
    chip = cluster.chip.model_copy(update={"kernel": kernel})
    report = dse.evaluate(
        LLAMA,
        cluster.model_copy(update={"chip": chip}),
        dse.Plan(tp=8, global_batch_size=8),
    )
    (said,) = (warning for warning in report.warnings if "bound" in warning)
    assert said == f"a bound, not an estimate: 1.0 is taken for {name}"


# aliyun/SimAI #292: the volume depended on whether profiling was on.
@pytest.mark.parametrize("machine", ["dgx-h100", "dgx-a100-640gb", "tpuv5p-pod"])
@pytest.mark.parametrize("stack", dse.list_stacks())
def test_tensor_parallel_volume_is_arithmetic(machine: str, stack: str) -> None:
    """h 4096, s 4096, one sequence in bf16, no sequence parallelism: two all-reduces forward and
    two backward a layer, of 2 s b h = 33,554,432 bytes, whatever prices the compute.
    """
    assert LLAMA.hidden == 4096
    plan = dse.Plan(tp=8, sequence_parallel=False, global_batch_size=1)
    layer = [
        item
        for item in itemised(plan, 8, machine=machine, stack=stack).comm()
        if item.name.startswith(("qkv in", "proj out", "fc1 in", "fc2 out"))
    ]
    assert {item.collective for item in layer} == {"all_reduce"}
    assert {item.bytes_per_call for item in layer} == {33_554_432}
    for direction in ("forward", "backward"):
        calls = sum(item.count_per_step for item in layer if f"({direction})" in item.name)
        assert calls == 2 * LLAMA.layers
    assert sum(item.count_per_step for item in layer) == 4 * LLAMA.layers


# aliyun/SimAI #142: tp = 24 across three nodes.
def test_tp_must_divide_the_heads() -> None:
    """32 heads over 24 ranks is refused with the divisors."""
    plan = dse.Plan(tp=24, global_batch_size=1).resolved(24)
    with pytest.raises(ConfigError, match="tp = 24 does not divide the 32") as caught:
        check(plan, Job(LLAMA, 4096, 24))
    assert caught.value.allowed == [1, 2, 4, 8, 16, 32]


def test_a_group_over_several_nodes_is_hierarchical() -> None:
    """Tp 32 over four nodes takes a hierarchical all-reduce, slower than inside one node."""
    inside, across = (
        {
            item.name: item
            for item in itemised(
                dse.Plan(tp=tp, sequence_parallel=False, global_batch_size=1),
                tp,
                machine="dgx-a100-640gb",
                stack="megatron-2022",
            ).comm()
        }
        for tp in (8, 32)
    )
    one, four = inside["proj out (forward)"], across["proj out (forward)"]
    assert (one.span_nodes, four.span_nodes) == (1, 4)
    assert four.algorithm == "hierarchical"
    assert four.time_s > one.time_s
    assert four.bytes_per_call == one.bytes_per_call


# ai-dynamo/aiconfigurator #1424: one stage's limit was ignored.
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(("first", "last"), [(0, 0), (14, 6), (6, 14), (2, 10)])
def test_no_stage_is_faster_than_its_own_limit(first: int, last: int, recompute: str) -> None:
    """Throughput is at most that of the slowest stage, by the same kernels on every stage: m
    micro-batches of its layers and ends.
    """
    plan = dse.Plan(pp=4, global_batch_size=16, recompute=recompute,
                    first_stage_layers=first, last_stage_layers=last)  # fmt: skip
    found = itemised(plan, 4)
    tables = found.model.tables(found.table)
    per_layer = float(tables.layer.forward_s[0, 0] + tables.layer.backward_s[0, 0])
    embedding, head = (
        float(getattr(tables.ends, f"{end}_forward_s")[0, 0])
        + float(getattr(tables.ends, f"{end}_backward_s")[0, 0])
        for end in ("embedding", "head")
    )
    layers = tables.sync.layers[:, 0]
    limits = [
        layers[0] * per_layer + embedding,
        layers[1] * per_layer,
        layers[2] * per_layer + head,
    ]
    step_s = float(found.columns.step_time_s[0, 0])
    assert 16 / step_s <= min(16 / (16 * limit) for limit in limits)
    # The slowest stage is the one whose ledger is reported.
    assert found.stage == int(np.argmax(limits))


# NVIDIA/Megatron-LM #597: how much memory will this configuration need.
MEGATRON = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --seq-length 4096 "
    "--max-position-embeddings 8192 --position-embedding-type rope --swiglu "
    "--normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights "
    "--vocab-size 128256 --attention-dropout 0 --hidden-dropout 0 --micro-batch-size 1 "
    "--global-batch-size 64 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 "
    "--sequence-parallel --use-distributed-optimizer --bf16"
)


def megatron_report() -> Report:
    run = read_arguments(MEGATRON)
    return dse.evaluate(
        run.model, "dgx-h100", dse.Plan(**run.plan), chips=16,
        seq_length=run.seq_length, precision=run.precision,
    )  # fmt: skip


def test_megatron_flags_give_memory_by_stage() -> None:
    """Eight layers a stage over tp 2, dp 2: 2 + 4 + 12/2 bytes a parameter, and 4 - r
    micro-batches in flight of what a layer saves.
    """
    report = megatron_report()
    h, f, kv, v = 4096, 14336, 1024, 128_256
    layer = (2 * h * h + 2 * h * kv + 3 * h * f) // 2 + 2 * h
    table = v * h // 2
    held = [8 * layer + table, 8 * layer, 8 * layer, 8 * layer + table + h]
    assert [stage.weights for stage in report.memory_bytes] == [2 * n for n in held]
    assert [stage.gradients for stage in report.memory_bytes] == [4 * n for n in held]
    assert [stage.optimizer for stage in report.memory_bytes] == [6 * n for n in held]
    # Bytes a token: 12h/2 + 4 kv/2 + lse 4a/2 + 6f/2 and two fp32 statistics, 8/2.
    saved = 4096 * (6 * h + 2 * kv + 2 * 32 + 3 * f + 4)
    ends = [4 * 8 * 4096, 0, 0, 4096 * (4 * h + 4) // 2]  # ids of 4 micro-batches; final norm
    assert [stage.activations for stage in report.memory_bytes] == [
        (4 - rank) * 8 * saved + ends[rank] for rank in range(4)
    ]
    # fp32 logits over tp 2 stay on the last stage.
    assert [stage.logits for stage in report.memory_bytes] == [0, 0, 0, 4 * 4096 * v // 2]


def test_memory_adds_up_to_its_total() -> None:
    """Categories of every stage sum to its total; the plan fits beside the reserve."""
    report = megatron_report()
    assert len(report.memory_bytes) == 4
    for stage in report.memory_bytes:
        amounts = stage.model_dump()
        total, reserve, capacity = (amounts.pop(name) for name in ("total", "reserve", "capacity"))
        assert sum(amounts.values()) == total
        assert total <= capacity - reserve
    assert report.fits
    assert report.peak_memory_bytes == max(stage.total for stage in report.memory_bytes)
