"""A step of Llama-3-8B, fully sharded over 64 H100, counted by hand to the last digit.

L 32, h 4096, 32 heads and 8 key/value heads of 128, gated FFN of 14336, RMSNorm, no biases,
untied, V 128256, s 8192. FSDP2: fp32 shards, bf16 gathered and computed, fp32 reduced, Adam; one
sequence a device and step; flash attention, fused SwiGLU, eager loss, no recomputation. Units:
embedding, 32 blocks, final norm with head (not dropped between forward and backward).
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import dse
from dse.block import block_cost
from dse.evaluation import stage_memory
from dse.items import Itemised
from dse.parameters import units_of
from dse.plan import RECOMPUTE
from dse.report import StageMemory
from dse.tables import layer_groups, layer_table, priced_blocks
from dse.workload.counts import forward_flop, model_flop, parameters
from hwmodels import kernels, load_cluster
from hwmodels.table import HardwareTable

pytestmark = pytest.mark.fast

LLAMA = dse.load_model("llama-3-8b")
S = 8192
PEAK = 989.4e12
BLOCK, EMBEDDING, HEAD = 218_112_000, 525_336_576, 525_340_672
"""Parameters of a unit: a block, the embedding, final norm and head."""


@cache
def itemised(batch: int = 64) -> Itemised:
    cluster = load_cluster("dgx-h100", num_chips=64)
    workload = dse.make_workload(LLAMA, S)
    step = dse.StepModel(workload, HardwareTable.of([cluster]), dse.load_stack("fsdp2"))
    return Itemised(step, dse.Plan(zero=3, global_batch_size=batch).resolved(64))


@cache
def memory(batch: int = 64) -> StageMemory:
    found = itemised(batch)
    (only,) = stage_memory(found.model, found)
    return only


def layer(recompute: str = "none", stack: str = "fsdp2", **changes: object) -> tuple[float, float]:
    """Saved and working bytes of a layer."""
    found = itemised()
    chosen = dse.load_stack(stack).model_copy(update=changes)
    pricing = dse.StepModel(found.model.workload, found.model.hardware, chosen).pricing
    keys = {**found.keys, "recompute": np.array([RECOMPUTE.index(recompute)])}
    table = layer_table(pricing, S, keys)
    return float(table.saved_bytes[0]), float(table.working_bytes[0])


# Parameters and operations ---------------------------------------------------------------------


def test_parameters() -> None:
    """2h^2 + 2h 1024 + 3hf + 2h a block, V h and V h + h at the ends."""
    units = units_of(itemised().model.pricing, S, itemised().keys)
    assert units.layer.dense[0] == BLOCK
    assert units.embedding.dense[0] == EMBEDDING
    assert units.head.dense[0] == HEAD
    total = parameters(LLAMA).total
    assert total == 32 * BLOCK + EMBEDDING + HEAD == 8_030_261_248
    assert total // 64 == 125_472_832
    assert total - EMBEDDING - 65 * LLAMA.hidden == 7_504_658_432  # those in matmuls


@pytest.mark.parametrize(
    ("convention", "core", "forward", "device", "step"),
    [
        (
            "full",
            1_099_511_627_776,
            158_140_695_838_720,
            474_422_087_516_160,
            30_363_013_601_034_240,
        ),
        (
            "causal",
            549_755_813_888,
            140_548_509_794_304,
            421_645_529_382_912,
            26_985_313_880_506_368,
        ),
    ],
)
def test_operations(convention: str, core: int, forward: int, device: int, step: int) -> None:
    """Linears and head alike in both conventions; a device trains on one sequence."""
    found = forward_flop(LLAMA, S, convention=convention)
    assert found.layer_linear_flop == 3_573_412_790_272
    assert found.layer_attention_flop == core
    assert found.head_flop == 8_607_114_461_184
    assert found.total_flop == forward
    assert model_flop(LLAMA, S, convention=convention) == device
    assert model_flop(LLAMA, S, sequences=64, convention=convention) == step


def test_six_times_parameters_and_tokens() -> None:
    """The usual shorthand with the parameters in matmuls, for comparison."""
    assert 6 * 7_504_658_432 * S == 368_868_971_249_664


def test_flash_backward_executes_five_products() -> None:
    """The kernel's roofline counts 2.5 times the forward: scores are formed once more."""
    hw = itemised().model.hardware
    assert hw.chip["peak_flop_per_s.bf16"][0] == PEAK
    forward, backward = (
        PEAK * kernels.attention.roofline_seconds(
            hw, 1, 32, 8, S, S, 128, pairs_fraction=0.5, dtype="bf16", direction=direction
        ).item()
        for direction in ("forward", "backward")
    )  # fmt: skip
    assert round(forward) == 549_755_813_888
    assert round(backward) == 2.5 * 549_755_813_888
    device = model_flop(LLAMA, S, convention="causal")
    assert round(device + 32 * (backward - 2 * forward)) == 430_441_622_405_120


def test_ideal_seconds() -> None:
    """Operations of one device over its dense peak."""
    assert round(model_flop(LLAMA, S) / PEAK, 9) == 0.479504839
    assert round(model_flop(LLAMA, S, convention="causal") / PEAK, 9) == 0.426162856
    assert round(430_441_622_405_120 / PEAK, 9) == 0.435053186


# Memory ----------------------------------------------------------------------------------------


def test_state() -> None:
    """Shards of fp32 weights, gradients and two moments: 16/64 bytes a parameter. The fp32 shard
    is weight and master in one, and counts as weights.
    """
    assert memory().weights == 501_891_328
    assert memory().gradients == 501_891_328
    assert memory().optimizer == 1_003_782_656
    assert memory().weights + memory().gradients + memory().optimizer == 2_007_565_312


def test_activations_of_a_layer() -> None:
    """12h + 4 k d + 4a + 6f + 8 bytes a token: 139,400."""
    assert 12 * 4096 + 4 * 8 * 128 + 4 * 32 + 6 * 14336 + 8 == 139_400
    assert layer()[0] == 139_400 * S == 1_141_964_800
    assert 32 * layer()[0] == 36_542_873_600
    # Eager SwiGLU keeps the activation's result as well, 8f instead of 6f.
    assert 32 * layer(gated_activation="eager")[0] == 44_059_066_368
    # Recomputing everything keeps the layers' inputs, and one layer's activations at a time.
    inputs, working = layer("full")
    assert (32 * inputs, working) == (2_147_483_648, 1_141_964_800)


def test_activations() -> None:
    """32 layers, 4h + 4 bytes a token for the final norm and the head, 8 for token ids."""
    assert memory().activations == 36_542_873_600 + 134_250_496 + 65_536 == 36_677_189_632


def test_logits() -> None:
    """4 s V stay until backward, 10 s V at the peak: the rest is working set of the loss."""
    assert memory().logits == 4_202_692_608
    assert memory().logits + memory().workspace == 10_506_731_520


def test_gathered() -> None:
    """At the loss the head and the prefetched last block in bf16; inside a block's backward two
    blocks, one bf16 gradient, and the fp32 input of the reduction.
    """
    assert memory().gathered == 2 * (HEAD + BLOCK) == 1_486_905_344
    tables = itemised().model.tables(itemised().table)
    inside = 872_448_000 + 436_224_000 + 872_448_000
    assert tables.sync.gathered_bytes[0] == inside == 2_181_120_000


def test_peak_is_at_the_loss() -> None:
    """State, activations, ten bytes a logit, and what is gathered there."""
    assert memory().total == 50_678_391_808
    peak = itemised().model.memory(itemised().table)
    assert (peak.peak_bytes[0], peak.peak_stage[0]) == (50_678_391_808, 0)


def test_accumulation_leaves_memory_alone() -> None:
    """Four micro-batches: the same shards, the same activations alive."""
    assert memory(256) == memory(64)


# Messages --------------------------------------------------------------------------------------


def listed(batch: int = 64) -> dict[str, tuple[str, float, float]]:
    """Data-parallel calls: collective, count and bytes of each."""
    found = {}
    for item in itemised(batch).comm():
        assert (item.group, item.size, item.span_nodes) == ("dp", 64, 8)
        found[item.name] = (item.collective, item.count_per_step, item.bytes_per_call)
    return found


def test_messages() -> None:
    """Units are gathered in bf16 for forward and backward, the head once; gradients are reduced
    in fp32; norm and loss are scalars.
    """
    assert listed() == {
        "dense layer gather": ("all_gather", 32 + 32, 436_224_000),
        "dense embedding gather": ("all_gather", 1 + 1, 1_050_673_152),
        "dense head gather": ("all_gather", 1, 1_050_681_344),
        "dense layer reduce": ("reduce_scatter", 32, 872_448_000),
        "dense embedding reduce": ("reduce_scatter", 1, 2_101_346_304),
        "dense head reduce": ("reduce_scatter", 1, 2_101_362_688),
        "gradient norm": ("all_reduce", 1, 4),
        "average of the loss": ("all_reduce", 1, 4),
    }


def test_sums_of_messages() -> None:
    """67 gathers and 34 reductions; 63/64 of their bytes leave the device."""
    found = listed()
    totals = {
        verb: sum(count * nbytes for name, count, nbytes in found.values() if name == verb)
        for verb in ("all_gather", "reduce_scatter")
    }
    forward, backward, reduced = 16_060_522_496, 15_009_841_152, 32_121_044_992
    assert totals == {"all_gather": forward + backward, "reduce_scatter": reduced}
    assert sum(totals.values()) == 63_191_408_640
    assert sum(totals.values()) * 63 / 64 == 62_204_042_880
    calls = {verb: sum(c for name, c, _ in found.values() if name == verb) for verb in totals}
    assert calls == {"all_gather": 34 + 33, "reduce_scatter": 34}


def test_every_micro_batch_sends_them_again() -> None:
    """Four micro-batches, four times the gathers and reductions, and the scalars once."""
    once, four = listed(64), listed(256)
    for name, (verb, count, nbytes) in once.items():
        repeats = 1 if verb == "all_reduce" else 4
        assert four[name] == (verb, repeats * count, nbytes)


def test_no_pipeline_no_bubble() -> None:
    """One stage: no bubble, no pipeline or tensor-parallel message."""
    parts = itemised().columns.parts
    for name in ("bubble", "tp", "cp", "ep", "pp"):
        assert parts[name][0, 0] == 0.0


def test_blocks_send_nothing() -> None:
    """Without tensor or context parallelism every call of a block has a group of one."""
    found = itemised()
    pricing = found.model.pricing
    blocks, shapes = priced_blocks(pricing, S, found.keys, sequence_parallel=False)
    cost = block_cost(blocks.layer, shapes, layer_groups(found.keys), pricing)
    assert all(np.all(message.seconds == 0.0) for message in cost.messages)
