"""Kernel time models: hand-worked values, the roofline as a floor, and monotonicity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels.errors import ConfigError, UnsupportedError
from hwmodels.kernels import attention, matmul, optimizer, parameters, pointwise
from hwmodels.table import HardwareTable

pytestmark = pytest.mark.fast

PLAIN = {
    "matmul_efficiency.bf16": 1.0,
    "matmul_sustained.bf16": 1.0,
    "matmul_k0": 0.0,
    "matmul_tile_half": 0.0,
    "matmul_wave_exposure": 1.0,
    "matmul_misaligned_efficiency": 0.9,
    "matmul_misaligned_batched_efficiency": 0.5,
    "matmul_boost_s": 1e-3,
    "matmul_memory_efficiency": 1.0,
    "matmul_start_s": 0.0,
    "attention_efficiency": 1.0,
    "attention_backward_ratio": 1.0,
    "attention_softmax_flop_per_pair": 0.0,
    "attention_start_s": 0.0,
    "attention_block_occupancy": 0.0,
    "attention_diagonal": 0.0,
    "memory_efficiency": 1.0,
    "optimizer_memory_efficiency": 0.5,
    "pointwise_start_s": 1e-6,
}


def table(rows: list[dict[str, float]] | None = None, **chip: float) -> HardwareTable:
    """Rows of a round-numbered chip: 100 cores, 100 TFLOP/s, 1 TB/s, 10 TFLOP/s vector."""
    base = {
        "peak_flop_per_s.bf16": 100e12,
        "memory_bytes_per_s": 1e12,
        "vector_flop_per_s": 10e12,
        "num_cores": 100.0,
        **{f"kernel.{name}": value for name, value in PLAIN.items()},
    }
    filled = [{**base, **chip, **row} for row in (rows or [{}])]
    return HardwareTable(
        names=tuple(str(i) for i in range(len(filled))),
        num_chips=1,
        chip={name: np.array([row[name] for row in filled]) for name in filled[0]},
        level_kinds=(),
        level_size=np.zeros((len(filled), 0), dtype=np.int64),
        level={},
        level_reduces=(),
        chips_per_node=np.ones(len(filled), dtype=np.int64),
    )


def shipped(silicon: str = "ga100", vendor: str = "nvidia") -> HardwareTable:
    """A hardware row with the parameters that the package ships."""
    values, _ = parameters.for_silicon(silicon, vendor=vendor)
    values = parameters.columns_with_defaults(values, ["bf16"])
    return table(**{f"kernel.{name}": value for name, value in values.items()})


SIZES = st.integers(1, 6000)


def test_matmul_of_whole_waves_runs_at_peak():
    """1,280 x 2,560 is 100 tiles of 256 x 128: one full wave of the 100 cores at peak."""
    # 2 * 1280 * 2560 * 1e6 / 100e12 = 0.065536 s; its 7.7 GB take 7.7 ms
    got = matmul.seconds(table(), 1280, 2560, 1_000_000, dtype="bf16")
    assert got == pytest.approx([0.065536])


def test_tile_quantisation_golden():
    """One row more than a full wave costs what the best of the other tile shapes takes."""
    # m 1281 needs, per tile shape (k = 1e6, per-core rate 1e12):
    #   256x128: 6 * 20 = 120 tiles, 2 waves = 2 * 2*32768e6/1e12          = 0.131072
    #   128x256: 11 * 10 = 110, 2 waves                                     = 0.131072
    #   128x128: 11 * 20 = 220, 3 waves of 2*16384e6/1e12                   = 0.098304
    #   128x64:  11 * 40 = 440, 5 waves of 2*8192e6/1e12                    = 0.081920
    #   64x128:  21 * 20 = 420, 5 waves                                     = 0.081920
    #   64x64:   21 * 40 = 840, 9 waves of 2*4096e6/1e12                    = 0.073728
    #   64x64 split in 4: 3360 tiles, 34 waves of 2*4096*0.25e6/1e12 = 0.069632, and partial sums
    #     8 B * 4 * 1281 * 2560 / 1e12 = 0.000104939
    #   64x64 split in 8: 6720 tiles, 68 waves of half that = 0.069632 + 0.000209879
    got = matmul.seconds(table(), 1281, 2560, 1_000_000, dtype="bf16")
    assert got == pytest.approx([0.069632 + 8 * 4 * 1281 * 2560 / 1e12], rel=1e-12)


def test_wave_exposure_smooths_the_tail():
    """With no exposure a tile's share of the cores counts, not the whole wave."""
    hw = table(**{"kernel.matmul_wave_exposure": 0.0})
    # 64x64: 840 tiles / 100 cores = 8.4 waves of 0.008192; splits add partial sums to that
    got = matmul.seconds(hw, 1281, 2560, 1_000_000, dtype="bf16")
    assert got == pytest.approx([0.0688128], rel=1e-9)


def test_memory_bound_matmul_golden():
    """A product of one row reads its weights once."""
    # bytes 2 * (4096 + 4096*4096 + 4096) = 33,570,816 at 1 TB/s
    got = matmul.parts(table(), 1, 4096, 4096, dtype="bf16")
    assert got.seconds == pytest.approx([33_570_816e-12])
    assert got.bound().tolist() == ["memory"]


def test_extra_bytes_are_traffic():
    """Accumulating into fp32 gradients adds its bytes to the memory term."""
    plain = matmul.parts(table(), 64, 64, 64, dtype="bf16").memory_s
    extra = matmul.parts(table(), 64, 64, 64, dtype="bf16", extra_bytes=8 * 64 * 64).memory_s
    assert extra - plain == pytest.approx([8 * 64 * 64 / 1e12])


def test_misaligned_head_size_is_slower():
    """A head size of 108 is no multiple of 16 bytes and runs at the misaligned rate."""
    hw = table()
    odd = matmul.parts(hw, 2048, 2048, 108, 64, dtype="bf16").compute_s
    even = matmul.parts(hw, 2048, 2048, 112, 64, dtype="bf16").compute_s
    # 0.9 for an odd side, 0.5 for an odd head in a batch
    assert odd == pytest.approx(even * 108 / 112 / 0.9 / 0.5)
    tokens = matmul.parts(hw, 2048, 2048, 107.5, 64, dtype="bf16").compute_s
    assert tokens == pytest.approx(even * 107.5 / 112 / 0.9)


def test_burst_clock_falls_to_the_sustained_one():
    """A kernel timed alone runs at the burst clock if short, and at the sustained one if long."""
    hw = table(**{"kernel.matmul_sustained.bf16": 0.8, "kernel.matmul_boost_s": 0.065536})
    # The whole-wave product takes 0.065536 s at burst clock and 0.08192 s sustained. At a boost
    # time of 0.065536 s half of the loss has set in: 0.065536 * (1 + 0.25 / 2) = 0.073728.
    assert matmul.seconds(hw, 1280, 2560, 1_000_000, dtype="bf16") == pytest.approx([0.08192])
    alone = matmul.seconds(hw, 1280, 2560, 1_000_000, dtype="bf16", burst=True)
    assert alone == pytest.approx([0.073728])


def test_fill_takes_the_same_time_at_any_precision():
    """A pipeline that fills for 64 steps of the sum in 16 bit fills for 128 at twice the rate."""
    hw = table(
        **{
            "peak_flop_per_s.fp8": 200e12,
            "kernel.matmul_efficiency.fp8": 1.0,
            "kernel.matmul_sustained.fp8": 1.0,
            "kernel.matmul_k0": 64.0,
        }
    )
    # One wave of 256 x 128 tiles: 2 * 1280 * 2560 * (k + 64) / 100e12, and (k + 128) / 200e12
    slow = matmul.parts(hw, 1280, 2560, 100_000, dtype="bf16").compute_s
    fast = matmul.parts(hw, 1280, 2560, 100_000, dtype="fp8").compute_s
    assert slow == pytest.approx([2 * 1280 * 2560 * 100_064 / 100e12])
    assert fast == pytest.approx([2 * 1280 * 2560 * 100_128 / 200e12])


def test_older_attention_kernels_run_at_their_relative_rate():
    """A kernel of half the current rate takes twice as long; an unknown one is refused."""
    hw = table(**{"kernel.attention_relative_rate.flash1": 0.5})
    sizes = (2, 8, 8, 4096, 4096, 128)
    current = attention.seconds(hw, *sizes, pairs_fraction=0.5, dtype="bf16")
    older = attention.seconds(
        hw, *sizes, pairs_fraction=0.5, dtype="bf16", implementation="flash1"
    )
    assert older == pytest.approx(2 * current)
    with pytest.raises(UnsupportedError, match="abacus"):
        attention.seconds(hw, *sizes, pairs_fraction=0.5, dtype="bf16", implementation="abacus")


def test_grouped_matmul_fills_the_cores():
    """Products too small to fill a chip alone share its cores when batched."""
    hw = table()
    one = matmul.seconds(hw, 128, 128, 4096, dtype="bf16")
    many = matmul.seconds(hw, 128, 128, 4096, 16, dtype="bf16")
    assert np.all(many < 8 * one)


def test_attention_golden():
    """Fused causal attention, by hand."""
    # pairs 2 * 8 * 1024 * 1024 * 0.5 = 8,388,608; 64 of 1024 keys more a query on the diagonal:
    # * 1.125 = 9,437,184. Matrix: 4 * 128 FLOP a pair at 50 TFLOP/s = 9.663676e-5 s; softmax 10 a
    # pair at 10 TFLOP/s = 9.437184e-6. 128 blocks on 100 cores: 1 + 0.5 * 100 / 128 = 1.390625.
    hw = table(
        **{
            "kernel.attention_efficiency": 0.5,
            "kernel.attention_softmax_flop_per_pair": 10.0,
            "kernel.attention_block_occupancy": 0.5,
            "kernel.attention_diagonal": 64.0,
            "kernel.attention_start_s": 1e-5,
        }
    )
    got = attention.seconds(hw, 2, 8, 8, 1024, 1024, 128, pairs_fraction=0.5, dtype="bf16")
    assert got == pytest.approx([(9.66367642e-5 + 9.437184e-6) * 1.390625 + 1e-5], rel=1e-7)


def test_attention_backward_is_two_and_a_half_times_forward():
    """Five products instead of two, at equal efficiency and without softmax or start."""
    sizes = (2, 8, 8, 4096, 4096, 128)
    forward = attention.seconds(table(), *sizes, pairs_fraction=0.5, dtype="bf16")
    backward = attention.seconds(
        table(), *sizes, pairs_fraction=0.5, dtype="bf16", direction="backward"
    )
    assert backward == pytest.approx(2.5 * forward)


def test_unfused_attention_golden():
    """Two batched products, and 13 bytes a score at the memory rate."""
    hw = table()
    # QK^T 1024 x 1024 x 128 and PV 1024 x 128 x 1024, 64 heads in a batch
    products = matmul.seconds(hw, 1024, 1024, 128, 64, dtype="bf16")
    products = products + matmul.seconds(hw, 1024, 128, 1024, 64, dtype="bf16")
    # 64 * 1024^2 * 13 B / 1e12 B/s = 8.724e-4 s, one launch of 1e-6 s
    got = attention.unfused_seconds(hw, 4, 16, 16, 1024, 1024, 128, dtype="bf16")
    assert got == pytest.approx(products + 64 * 1024**2 * 13 / 1e12 + 1e-6)


def test_pointwise_and_optimizer_goldens():
    """Bytes over the rate, plus launches."""
    hw = table()
    assert pointwise.seconds(hw, 1e9, 3) == pytest.approx([1e-3 + 3e-6])
    assert optimizer.seconds(hw, 1e9) == pytest.approx([2e-3 + 1e-6])
    assert pointwise.bound(hw, np.array([1e9, 1.0])).tolist() == [["memory", "launch"]]
    assert optimizer.bound(hw, 1e9).tolist() == ["memory"]


@pytest.mark.parametrize("silicon", ["ga100", "gh100", "gb100", "gv100", "unknown"])
@settings(max_examples=25, deadline=None)
@given(m=SIZES, n=SIZES, k=SIZES, batch=st.integers(1, 64))
def test_matmul_never_beats_the_roofline(silicon, m, n, k, batch):
    """No product is faster than the dense peak or the nominal memory rate allow."""
    hw = shipped(silicon)
    floor = matmul.roofline_seconds(hw, m, n, k, batch, dtype="bf16")
    assert np.all(matmul.seconds(hw, m, n, k, batch, dtype="bf16") >= floor * (1 - 1e-12))


@settings(max_examples=50, deadline=None)
@given(
    batch=st.integers(1, 16),
    heads=st.integers(1, 64),
    seq=st.integers(1, 20000),
    head_dim=st.integers(8, 256),
    fraction=st.floats(0.01, 1.0),
    direction=st.sampled_from(["forward", "backward"]),
)
def test_attention_never_beats_the_roofline(batch, heads, seq, head_dim, fraction, direction):
    """No attention is faster than its products at peak, or its tensors at the memory rate."""
    hw = shipped()
    arguments = (hw, batch, heads, heads, seq, seq, head_dim)
    fused = {"pairs_fraction": fraction, "dtype": "bf16", "direction": direction}
    floor = attention.roofline_seconds(*arguments, **fused) * (1 - 1e-12)
    assert np.all(attention.seconds(*arguments, **fused) >= floor)
    unfused = attention.unfused_seconds(*arguments, dtype="bf16", direction=direction)
    if direction == "forward":
        assert np.all(unfused >= floor)


@settings(max_examples=50, deadline=None)
@given(
    m=SIZES,
    n=SIZES,
    k=SIZES,
    column=st.sampled_from(["peak_flop_per_s.bf16", "memory_bytes_per_s", "vector_flop_per_s"]),
    factor=st.floats(1.0, 10.0),
)
def test_faster_hardware_is_never_slower(m, n, k, column, factor):
    """More peak, memory rate or vector rate never lengthens a kernel."""
    slow = shipped()
    fast = slow.scaled(column, factor)
    assert np.all(
        matmul.seconds(fast, m, n, k, dtype="bf16")
        <= matmul.seconds(slow, m, n, k, dtype="bf16") * (1 + 1e-12)
    )
    sizes = {"pairs_fraction": 0.5, "dtype": "bf16"}
    assert np.all(
        attention.seconds(fast, 1, 8, 8, m, m, 128, **sizes)
        <= attention.seconds(slow, 1, 8, 8, m, m, 128, **sizes) * (1 + 1e-12)
    )
    passes = pointwise.seconds(slow, m * 1e3) * (1 + 1e-12)
    assert np.all(pointwise.seconds(fast, m * 1e3) <= passes)


@settings(max_examples=25, deadline=None)
@given(m=SIZES, n=SIZES, k=SIZES, more=SIZES)
def test_more_work_is_never_faster(m, n, k, more):
    """A product with more rows takes at least as long."""
    hw = shipped("gh100")
    less = matmul.seconds(hw, m, n, k, dtype="bf16")
    assert np.all(matmul.seconds(hw, m + more, n, k, dtype="bf16") >= less * (1 - 1e-12))


def test_a_batch_of_rows_equals_single_calls():
    """(H, S) in one call equals H x S scalar calls to 1e-12."""
    rows = [
        {"peak_flop_per_s.bf16": 100e12, "num_cores": 100.0, "kernel.matmul_k0": 200.0},
        {"peak_flop_per_s.bf16": 300e12, "num_cores": 132.0, "kernel.matmul_start_s": 5e-6},
    ]
    hw = table(rows)
    m = np.array([[1, 100, 4096], [77, 2048, 12288]])
    n, k = m[:, ::-1], m * 2
    batched = matmul.seconds(hw, m, n, k, 3, dtype="bf16")
    fused = attention.seconds(hw, 2, 8, 2, m, m, 96, pairs_fraction=0.5, dtype="bf16")
    unfused = attention.unfused_seconds(hw, 2, 8, 2, m, m, 96, dtype="bf16")
    passed = pointwise.seconds(hw, m * 1e6, n)
    assert batched.shape == (2, 2, 3)
    for h, row in enumerate(rows):
        one = table([row])
        for i in np.ndindex(m.shape):
            size = int(m[i])
            for got, want in (
                (batched, matmul.seconds(one, size, n[i], k[i], 3, dtype="bf16")),
                (
                    fused,
                    attention.seconds(
                        one, 2, 8, 2, size, size, 96, pairs_fraction=0.5, dtype="bf16"
                    ),
                ),
                (unfused, attention.unfused_seconds(one, 2, 8, 2, size, size, 96, dtype="bf16")),
                (passed, pointwise.seconds(one, size * 1e6, n[i])),
            ):
                assert got[(h, *i)] == pytest.approx(want[0], rel=1e-12)


def test_parts_add_up():
    """Seconds are the longer of compute and memory, plus the start."""
    got = matmul.parts(shipped(), np.array([16, 4096]), 4096, 4096, dtype="bf16")
    assert got.seconds == pytest.approx(np.maximum(got.compute_s, got.memory_s) + got.start_s)


def test_unknown_dtypes_and_directions_are_refused():
    """A dtype without a peak, or unknown, and a wrong direction are refused by name."""
    with pytest.raises(UnsupportedError, match="fp8"):
        matmul.seconds(table(), 8, 8, 8, dtype="fp8")
    with pytest.raises(UnsupportedError, match="int3"):
        matmul.traffic_bytes(8, 8, 8, dtype="int3")
    with pytest.raises(UnsupportedError, match="sideways"):
        attention.seconds(
            table(), 1, 1, 1, 8, 8, 8, pairs_fraction=1, dtype="bf16", direction="sideways"
        )
    hw = table()
    bare = replace(hw, chip={k: v for k, v in hw.chip.items() if k != "kernel.matmul_k0"})
    with pytest.raises(UnsupportedError, match="matmul_k0"):
        matmul.seconds(bare, 8, 8, 8, dtype="bf16")


@pytest.mark.parametrize("silicon", ["ga100", "gh100", "gb100", "gv100", "mi300x", "tpuv4", ""])
@pytest.mark.parametrize("vendor", ["NVIDIA", "AMD", "Google", "somebody"])
def test_every_silicon_has_every_parameter(silicon, vendor):
    """Whatever the silicon, each parameter has a value in its range, a status and a source."""
    found = parameters.parameters_for(silicon, vendor=vendor)
    assert set(PLAIN) <= set(found)
    for name, entry in found.items():
        assert entry.low <= entry.value <= entry.high, name
        assert entry.status in ("measured", "transferred", "assumed")
        assert entry.source
        if entry.unit == "1":
            assert 0 <= entry.value <= 1, name


def test_status_says_how_a_parameter_is_known():
    """Own data are measured, a sister die's transferred, and nothing known is assumed."""
    assert parameters.for_silicon("ga100", vendor="NVIDIA")[1]["matmul_k0"] == "measured"
    assert parameters.for_silicon("ga102", vendor="NVIDIA")[1]["matmul_k0"] == "transferred"
    assert parameters.for_silicon("x", vendor="somebody")[1]["matmul_k0"] == "assumed"


def test_other_memory_makes_memory_parameters_transferred():
    """The same die with another memory keeps the values, but no longer as measured ones."""
    _, same = parameters.for_silicon("gh100", vendor="NVIDIA", memory_bytes_per_s=3.35e12)
    _, other = parameters.for_silicon("gh100", vendor="NVIDIA", memory_bytes_per_s=4.8e12)
    assert same["memory_efficiency"] == "measured"
    assert other["memory_efficiency"] == "transferred"
    assert other["matmul_k0"] == "measured"


def test_a_transferred_range_is_wider_than_a_measured_one():
    """What another die of the family is known for comes with more doubt."""

    def width(silicon: str) -> float:
        entry = parameters.parameters_for(silicon, vendor="nvidia")["matmul_efficiency.bf16"]
        return entry.high / entry.low

    assert width("ga100") < width("ga102")


def test_every_dtype_of_the_peaks_gets_an_efficiency():
    """A dtype that nobody fitted takes the nearest one's."""
    filled = parameters.columns_with_defaults(
        {"matmul_efficiency.bf16": 0.8, "matmul_sustained.bf16": 0.9}, ["bf16", "fp8"]
    )
    assert filled["matmul_efficiency.fp8"] == 0.8
    assert filled["matmul_sustained.fp8"] == 0.9
    with pytest.raises(ConfigError):
        parameters.columns_with_defaults({}, ["bf16"])


def test_unknown_families_are_refused():
    """A family without a file is an error that lists the known ones."""
    with pytest.raises(ConfigError, match="nvidia"):
        parameters.for_silicon("x", family="vacuum-tubes")
