"""A step of GPT-3 175B on 512 A100, counted by hand: tp 8, pp 8, dp 8, to the last digit.

h 12288, f 4h, L 96, a 96 heads of 128, V 51200, s 2048, dropout, tied embeddings, learned
positions, bf16 with fp32 gradients and Adam, micro-batch 1 of a batch of 1,536 (192 micro-batches
a step), sequence parallelism, selective recomputation of the unfused core attention, every score
computed, 1F1B, 12 layers a stage. Ranks 0, 1 to 6, and 7 differ by the ends of the model.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import dse
from dse.block import BlockCost, block_cost
from dse.evaluation import stage_memory
from dse.items import Itemised
from dse.parameters import StageParameters, Units, stage_layers, stage_parameters, units_of
from dse.plan import RECOMPUTE, SCHEDULES
from dse.report import StageMemory
from dse.schedule import FIRST, LAST, MIDDLE, Stages, pipe_time
from dse.sync import SyncCall, sync_calls
from dse.tables import layer_groups, layer_table, priced_blocks
from dse.workload.counts import forward_flop, hardware_flop, model_flop, parameters
from hwmodels import load_cluster
from hwmodels.table import HardwareTable

pytestmark = pytest.mark.fast

MICRO_BATCHES = 192
LAYERS = 12
STAGES = (FIRST, MIDDLE, LAST)
GPT3 = dse.load_model("korthikanti-175b")


@cache
def itemised(**changes: object) -> Itemised:
    cluster = load_cluster("dgx-a100-80gb", num_chips=512)
    fields: dict[str, object] = {
        "tp": 8, "pp": 8, "global_batch_size": 1536, "recompute": "selective"
    } | changes  # fmt: skip
    workload = dse.make_workload(GPT3, 2048)
    stack = dse.load_stack("megatron-2022")
    step = dse.StepModel(workload, HardwareTable.of([cluster]), stack)
    return Itemised(step, dse.Plan(**fields).resolved(512))


def counted(**changes: object) -> tuple[Units, StageParameters]:
    found = itemised(**changes)
    pricing, keys = found.model.pricing, found.keys
    units = units_of(pricing, 2048, keys)
    return units, stage_parameters(units, stage_layers(GPT3.layers, keys), keys["pp"])


def calls(stage: int, **changes: object) -> dict[str, SyncCall]:
    found = itemised(**changes)
    return sync_calls(found.model.pricing, *counted(**changes), found.keys, stage=stage)


def block(part: str) -> BlockCost:
    found = itemised()
    pricing = found.model.pricing
    blocks, shapes = priced_blocks(pricing, 2048, found.keys, sequence_parallel=True)
    return block_cost(getattr(blocks, part), shapes, layer_groups(found.keys), pricing)


def sent(part: str, times: int) -> dict[tuple[str, str, float], int]:
    """Calls a step of one kind of block, by collective, direction and bytes."""
    found: dict[tuple[str, str, float], int] = {}
    for message in block(part).messages:
        key = (message.verb, message.direction, float(message.nbytes[0]))
        found[key] = found.get(key, 0) + message.repeats * times
    return found


# Parameters ------------------------------------------------------------------------------------


def test_parameters_of_the_model() -> None:
    """12h^2 + 13h a block; with V h, 2048 h of positions and the final norm 174.6 G."""
    count = parameters(GPT3)
    assert count.block.total == 1_812_099_072
    assert count.total == 174_615_846_912


def test_parameters_of_a_rank() -> None:
    """12 h^2/8 + 7h/8 + 6h a block; the table's share and positions, or the copy and a norm."""
    units, stages = counted()
    assert units.layer.dense[0] == 226_576_896
    assert stages.dense[:, 0].tolist() == [2_822_731_776, 2_718_922_752, 2_797_590_528]
    assert np.all(stages.expert == 0)


def test_ranks_hold_the_model_and_its_copies() -> None:
    """Eight times the stages: the model, the whole norms on each tp rank, and the tied copy."""
    _, stages = counted()
    h, per_stage = GPT3.hidden, stages.dense[:, 0]
    total = 8 * (per_stage[FIRST] + 6 * per_stage[MIDDLE] + per_stage[LAST])
    whole_on_every_tp_rank = 96 * 6 * h + 2048 * h + 2 * h
    assert total == 175_470_870_528
    assert total == 174_615_846_912 + 7 * whole_on_every_tp_rank + GPT3.vocab * h


# Operations ------------------------------------------------------------------------------------


def test_operations() -> None:
    """24 s h^2 and 4 s^2 h a layer, 2 s h V for the head, three forward passes a step."""
    forward = forward_flop(GPT3, 2048)
    assert forward.layer_linear_flop == 7_421_703_487_488
    assert forward.layer_attention_flop == 206_158_430_208
    assert forward.head_flop == 2_576_980_377_600
    assert forward.total_flop == 734_851_724_476_416
    model = model_flop(GPT3, 2048, sequences=1536)
    hardware = hardware_flop(GPT3, 2048, sequences=1536, recompute="selective")
    assert model == 3_386_196_746_387_324_928
    assert hardware == 3_416_596_043_872_075_776
    assert model // 512 == 6_613_665_520_287_744
    assert hardware // 512 == 6_673_039_148_187_648


def test_operations_with_the_causal_half() -> None:
    """Half the scores and products with the values, in the repeated part too."""
    model = model_flop(GPT3, 2048, sequences=1536, convention="causal")
    hardware = hardware_flop(
        GPT3, 2048, sequences=1536, recompute="selective", convention="causal"
    )
    assert model == 3_340_597_800_160_198_656
    assert hardware == 3_355_797_448_902_574_080


def test_six_times_parameters_and_tokens() -> None:
    """The usual shorthand, for comparison."""
    assert 6 * parameters(GPT3).total * 1536 * 2048 == 3_295_763_753_248_751_616


def test_kernels_of_a_rank_execute_these_operations() -> None:
    """Matmul shapes of one device: linears an eighth of the layer's, 12 layers, the head's."""

    def executed(part: str, kind: str, direction: str) -> int:
        return sum(
            int(2 * w.shape["m"][0] * w.shape["n"][0] * w.shape["k"][0] * w.shape["batch"][0])
            for w in block(part).works
            if (w.kind, w.direction) == (kind, direction) and "m" in w.shape
        )

    assert executed("layer", "matmul", "forward") == 927_712_935_936
    assert executed("layer", "attention", "forward") == 25_769_803_776
    assert executed("head", "matmul", "forward") == 322_122_547_200
    for direction in ("dgrad", "wgrad"):
        assert executed("layer", "matmul", direction) == 927_712_935_936
        assert executed("head", "matmul", direction) == 322_122_547_200
    assert executed("layer", "attention", "backward") == 2 * 25_769_803_776


# Memory ----------------------------------------------------------------------------------------


@cache
def memory(**changes: object) -> tuple[StageMemory, ...]:
    found = itemised(**changes)
    return stage_memory(found.model, found)


def by_kind(name: str, **changes: object) -> list[float]:
    stages = memory(**changes)
    values = [getattr(stage, name) for stage in stages]
    assert len(set(values[1:7])) == 1
    return [values[0], values[1], values[7]]


def test_state_without_sharding() -> None:
    """2 + 4 + 12 = 18 bytes a parameter."""
    assert by_kind("weights", zero=0) == [5_645_463_552, 5_437_845_504, 5_595_181_056]
    assert by_kind("gradients", zero=0) == [11_290_927_104, 10_875_691_008, 11_190_362_112]
    assert by_kind("optimizer", zero=0) == [33_872_781_312, 32_627_073_024, 33_571_086_336]
    tables = itemised(zero=0).model.tables(itemised(zero=0).table)
    states = tables.sync.state_bytes[:, 0].tolist()
    assert states == [50_809_171_968, 48_940_609_536, 50_356_629_504]


def test_state_with_a_sharded_optimizer() -> None:
    """2 + 4 + 12/8 = 7.5 bytes a parameter."""
    assert by_kind("optimizer", zero=1) == [4_234_097_664, 4_078_384_128, 4_196_385_792]
    tables = itemised(zero=1).model.tables(itemised(zero=1).table)
    states = tables.sync.state_bytes[:, 0].tolist()
    assert states == [21_170_488_320, 20_391_920_640, 20_981_928_960]


@pytest.mark.parametrize(
    ("recompute", "layer_bytes"),
    [("selective", 106_954_752), ("none", 358_612_992), ("full", 6_291_456)],
)
def test_activations_of_a_layer(recompute: str, layer_bytes: int) -> None:
    """34 s h/8; with the scores' 5 a s^2/8; the layer's input alone, 2 s h/8."""
    found = itemised()
    keys = {**found.keys, "recompute": np.array([RECOMPUTE.index(recompute)])}
    assert layer_table(found.model.pricing, 2048, keys).saved_bytes[0] == layer_bytes


def test_activations_of_the_stages() -> None:
    """12 layers times 8 - r micro-batches; rank 0 adds 8 dropout masks of the embedding, rank 7
    the inputs of the final norm and of the head.
    """
    blocks = [
        10_267_656_192, 8_984_199_168, 7_700_742_144, 6_417_285_120,
        5_133_828_096, 3_850_371_072, 2_566_914_048, 1_283_457_024,
    ]  # fmt: skip
    masks, head_inputs = 25_165_824, 12_582_912
    expected = [blocks[0] + masks, *blocks[1:7], blocks[7] + head_inputs]
    assert [stage.activations for stage in memory()] == expected


def test_logits_stay_on_the_last_stage() -> None:
    """4 s V/8 in fp32, written over by the softmax."""
    assert [stage.logits for stage in memory()] == [0] * 7 + [52_428_800]


@pytest.mark.parametrize(
    ("zero", "totals"),
    [
        (0, (61_101_993_984, 57_924_808_704, 51_705_098_240)),
        (1, (31_463_310_336, 29_376_119_808, 22_330_397_696)),
    ],
)
def test_totals_by_stage(zero: int, totals: tuple[int, int, int]) -> None:
    """State, activations and logits of ranks 0, 1 and 7. The hand count leaves the working set
    out, which is a category of its own here.
    """
    stages = memory(zero=zero)
    found = [stages[rank].total - stages[rank].workspace for rank in (0, 1, 7)]
    assert tuple(found) == totals


def test_working_set() -> None:
    """One core attention 5 a s^2/8 and one gathered 2 s h, and a buffer of 2 s h/8 each to send
    and to receive; on the last stage they exceed the 2 s V/8 of bf16 logits beside the loss.
    """
    core, gathered, buffers = 251_658_240, 50_331_648, 2 * 6_291_456
    assert by_kind("workspace") == [core + gathered + buffers] * 3
    assert itemised().model.tables(itemised().table).ends.loss_bytes[0] == 26_214_400
    assert by_kind("gathered") == [0, 0, 0]


# Messages --------------------------------------------------------------------------------------


def test_tensor_parallel_messages_of_the_layers() -> None:
    """Two gathers and two scatters each way of 2 s h, and two gathers that rebuild inputs."""
    m = 50_331_648
    assert sent("layer", LAYERS * MICRO_BATCHES) == {
        ("all_gather", "forward", m): 4_608,
        ("all_gather", "backward", m): 4_608,
        ("all_gather", "rebuild", m): 4_608,
        ("reduce_scatter", "forward", m): 4_608,
        ("reduce_scatter", "backward", m): 4_608,
    }


def test_tensor_parallel_messages_of_the_ends() -> None:
    """Embedding: all-reduced, then sliced; gathered backward. Head: as a column-parallel linear.
    Loss: maximum, target logit and sum of exponentials, 4 s bytes each.
    """
    m = 50_331_648
    assert sent("embedding", MICRO_BATCHES) == {
        ("all_reduce", "forward", m): 192,
        ("all_gather", "backward", m): 192,
    }
    assert sent("head", MICRO_BATCHES) == {
        ("all_gather", "forward", m): 192,
        ("reduce_scatter", "backward", m): 192,
        ("all_gather", "rebuild", m): 192,
        ("all_reduce", "forward", 8_192): 576,
    }


def test_listed_messages_are_those_of_the_last_stage() -> None:
    """The report's list holds the calls of layers and head, 13,824 + 384 gathers in all."""
    gathers = scatters = 0.0
    for item in itemised().comm():
        if item.bytes_per_call == 50_331_648:
            assert (item.group, item.size, item.span_nodes) == ("tp", 8, 1)
            gathers += item.count_per_step * (item.collective == "all_gather")
            scatters += item.count_per_step * (item.collective == "reduce_scatter")
    assert (gathers, scatters) == (13_824 + 384, 9_216 + 192)


def test_gradients_of_norms_and_late_biases() -> None:
    """12 layers of 6h in fp32 over tp; the last stage adds the final norm's 2h."""
    found = [calls(stage)["norm and bias gradients"] for stage in STAGES]
    assert [float(call.nbytes[0]) for call in found] == [3_538_944, 3_538_944, 3_637_248]
    assert {call.verb for call in found} == {"all_reduce"}
    assert group(found[0]) == [(8, 1)]


def group(call: SyncCall) -> list[tuple[int, int]]:
    """(size, stride) of the dimensions over which a group extends."""
    dims = [(int(size[0]), int(stride[0])) for size, stride in call.dims]
    return [dim for dim in dims if dim[0] > 1]


def test_pipeline_messages() -> None:
    """192 messages each way of a slice of 2 s h/8, to the next of 8 stages 64 chips on."""
    hops = [item for item in itemised().comm() if item.collective == "p2p"]
    assert [(h.size, h.count_per_step, h.bytes_per_call) for h in hops] == [
        (8, 192, 6_291_456)
    ] * 2
    assert {item.span_nodes for item in hops} == {8}


def test_data_parallel_messages_without_sharding() -> None:
    """One all-reduce of fp32 gradients over 8 replicas 8 chips apart."""
    found = [calls(stage, zero=0) for stage in STAGES]
    reduced = [call["dense gradients, all-reduce"] for call in found]
    assert [float(c.nbytes[0]) for c in reduced] == [
        11_290_927_104, 10_875_691_008, 11_190_362_112
    ]  # fmt: skip
    assert group(reduced[0]) == [(8, 8)]
    assert reduced[0].verb == "all_reduce"
    assert all(c["dense gradients"].nbytes[0] == 0 for c in found)
    assert all(c["dense parameters"].nbytes[0] == 0 for c in found)


def test_data_parallel_messages_with_a_sharded_optimizer() -> None:
    """A reduce-scatter of fp32 gradients and an all-gather of bf16 parameters."""
    found = [calls(stage, zero=1) for stage in STAGES]
    scattered = [call["dense gradients"] for call in found]
    gathered = [call["dense parameters"] for call in found]
    assert [float(c.nbytes[0]) for c in scattered] == [
        11_290_927_104, 10_875_691_008, 11_190_362_112
    ]  # fmt: skip
    assert [float(c.nbytes[0]) for c in gathered] == [
        5_645_463_552, 5_437_845_504, 5_595_181_056
    ]  # fmt: skip
    assert (scattered[0].verb, gathered[0].verb) == ("reduce_scatter", "all_gather")
    assert group(scattered[0]) == group(gathered[0]) == [(8, 8)]
    assert all(c["dense gradients, all-reduce"].nbytes[0] == 0 for c in found)


def test_tied_embedding_gradients() -> None:
    """The two copies are summed between ranks 0 and 7, 448 chips apart: 4 V h/8 bytes."""
    call = calls(FIRST)["tied embedding gradients"]
    assert (float(call.nbytes[0]), call.verb, group(call)) == (
        314_572_800, "all_reduce", [(2, 448)]
    )  # fmt: skip


@pytest.mark.parametrize(("zero", "ranks"), [(0, 64), (1, 512)])
def test_scalars(zero: int, ranks: int) -> None:
    """The norm of whole gradients is known to every replica; of shards it is summed over all."""
    found = calls(FIRST, zero=zero)
    norm, loss = found["gradient norm"], found["average of the loss"]
    assert norm.nbytes[0] == loss.nbytes[0] == 4
    assert np.prod([size for size, _ in group(norm)]) == ranks
    assert group(loss) == [(8, 8)]


# Time at peak ----------------------------------------------------------------------------------

PEAK = 312e12
LINEARS, CORE, HEAD = 927_712_935_936, 25_769_803_776, 322_122_547_200
FORWARD = LAYERS * (LINEARS + CORE)
BACKWARD = 2 * FORWARD + LAYERS * CORE


def pipe_flop(head: int) -> float:
    """Operations on the critical path of 1F1B, in place of seconds."""

    def row(value: int) -> np.ndarray:
        return np.array([[float(value)]])

    f, b = row(FORWARD), row(BACKWARD)
    stages = Stages(f, b, f, b, f + row(head), b + row(2 * head))
    one = np.array([SCHEDULES.index("1f1b")])
    found = pipe_time(one, np.array([8]), np.array([1]), np.array([MICRO_BATCHES]), stages)
    return float(found.seconds[0, 0])


def test_passes_of_a_rank_at_peak() -> None:
    """F and B of 12 layers, and with the head, over 312 TFLOP/s."""
    assert FORWARD == 11_441_792_876_544
    assert BACKWARD == 23_192_823_398_400
    assert round(FORWARD / PEAK, 9) == 0.036672413
    assert round(BACKWARD / PEAK, 9) == 0.074335972
    assert round((FORWARD + HEAD) / PEAK, 9) == 0.037704857
    assert round((BACKWARD + 2 * HEAD) / PEAK, 9) == 0.076400861


def test_ideal_step_at_peak() -> None:
    """All operations over all chips."""
    model = model_flop(GPT3, 2048, sequences=1536)
    hardware = hardware_flop(GPT3, 2048, sequences=1536, recompute="selective")
    peak = itemised().model.hardware.chip["peak_flop_per_s.bf16"][0]
    assert peak == PEAK
    assert round(model / (512 * PEAK), 9) == 21.197645898
    assert round(hardware / (512 * PEAK), 9) == 21.387945988


def test_pipeline_at_peak() -> None:
    """(192 + 7)(F + B) without the head; with it 7 (F + B) + 192 (F + B + 3 head)."""
    assert pipe_flop(0) == 199 * (FORWARD + BACKWARD)
    assert round(pipe_flop(0) / PEAK, 9) == 22.090668714
    assert pipe_flop(HEAD) == 7_077_831_225_901_056
    assert round(pipe_flop(HEAD) / PEAK, 9) == 22.685356493


def test_bubble_at_peak() -> None:
    """7/192 of the ideal, 7/199 of the total, where ranks are equal."""
    ideal = MICRO_BATCHES * (FORWARD + BACKWARD)
    bubble = pipe_flop(0) - ideal
    assert round(100 * bubble / ideal, 4) == 3.6458
    assert round(100 * bubble / pipe_flop(0), 4) == 3.5176
