"""Convolution times: hand-worked values, the matmul they are, the roofline, and printed rates."""

from __future__ import annotations

import csv
import re
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels.accelerator import DesignColumns, Systolic, to_chip_columns
from hwmodels.calibration import rows
from hwmodels.errors import ConfigError, UnsupportedError
from hwmodels.kernels import conv, matmul, parameters
from hwmodels.kernels.conv import DIRECTIONS, Convolution
from hwmodels.kernels.conv_shape import product, traffic_bytes
from hwmodels.table import HardwareTable

pytestmark = pytest.mark.fast

_OWN = {
    f"conv_{stem}.{precision}.{direction}": 1.0
    for stem in ("rate", "strided_rate", "fill", "tile", "memory_efficiency")
    for precision in conv.PRECISIONS
    for direction in DIRECTIONS
}
NEUTRAL = {
    **{f"matmul_efficiency.{dtype}": 1.0 for dtype in ("bf16", "fp32")},
    **{f"matmul_sustained.{dtype}": 1.0 for dtype in ("bf16", "fp32")},
    "matmul_k0": 100.0,
    "matmul_tile_half": 50.0,
    "matmul_wave_exposure": 0.5,
    "matmul_misaligned_efficiency": 1.0,
    "matmul_misaligned_batched_efficiency": 1.0,
    "matmul_memory_efficiency": 1.0,
    "matmul_start_s": 0.0,
    **_OWN,
    **{f"conv_start_s.{p}.{d}": 0.0 for p in conv.PRECISIONS for d in DIRECTIONS},
    **{f"conv_winograd_rate.{direction}": 1.0 for direction in DIRECTIONS},
    "conv_pointwise_rate.fp32.wgrad": 1.0,
    "conv_misaligned_rate": 0.5,
    "conv_grouped_efficiency": 0.5,
}
IDEAL = {"matmul_k0": 0.0, "matmul_tile_half": 0.0, "matmul_wave_exposure": 1.0}


def table(values: dict[str, float], **chip: float) -> HardwareTable:
    """A chip of 100 cores, 100 TFLOP/s in 16 bit, 10 in fp32 and vectors, 1 TB/s."""
    columns = {
        "peak_flop_per_s.bf16": 100e12,
        "peak_flop_per_s.fp32": 10e12,
        "memory_bytes_per_s": 1e12,
        "vector_flop_per_s": 10e12,
        "num_cores": 100.0,
        **{f"kernel.{name}": value for name, value in values.items()},
        **chip,
    }
    return of_columns({name: np.array([value]) for name, value in columns.items()})


def of_columns(chip) -> HardwareTable:
    return HardwareTable(
        names=("chip",),
        num_chips=1,
        chip=chip,
        level_kinds=(),
        level_size=np.zeros((1, 0), dtype=np.int64),
        level={},
        level_reduces=(),
        chips_per_node=np.ones(1, dtype=np.int64),
    )


def neutral(**other: float) -> HardwareTable:
    """No loss but that of the matmul: a convolution's own factors are all 1."""
    return table({**NEUTRAL, **other})


def shipped(silicon: str) -> HardwareTable:
    """The same chip with the parameters that the package ships."""
    values, _ = parameters.for_silicon(silicon, vendor="NVIDIA")
    return table(parameters.columns_with_defaults(values, ["bf16", "fp32"]))


V100 = shipped("gv100")
A100 = shipped("ga100")
CONVOLUTIONS = st.builds(
    Convolution,
    batch=st.integers(1, 64),
    height=st.integers(7, 120),
    width=st.integers(7, 120),
    in_channels=st.integers(1, 64).map(lambda n: 12 * n),
    out_channels=st.integers(1, 64).map(lambda n: 12 * n),
    kernel_h=st.sampled_from([1, 3, 5, 7]),
    kernel_w=st.sampled_from([1, 3, 5]),
    stride_h=st.integers(1, 3),
    stride_w=st.integers(1, 2),
    pad_h=st.integers(0, 3),
    pad_w=st.integers(0, 2),
    groups=st.sampled_from([1, 1, 1, 4, 12]),
)
DIRECTION = st.sampled_from(DIRECTIONS)
few = settings(max_examples=25)


def test_a_whole_wave_runs_at_peak():
    """20 images of 8 x 8 by 2,560 channels are 100 tiles of 256 x 128: one wave at peak."""
    # 2 * (20 * 8 * 8) * 2560 * (1024 * 3 * 3) / 100e12 = 0.60398 ms; 56 MB take 0.056 ms
    got = conv.seconds(
        neutral(**IDEAL), Convolution(20, 8, 8, 1024, 2560, 3, 3, pad_h=1, pad_w=1), dtype="bf16"
    )
    assert got == pytest.approx([6.0398e-4], rel=1e-4)


def test_a_thin_result_wastes_most_of_a_tile():
    """One image of 8 x 8 with 64 channels fills one core, or eight with the sum split."""
    # one tile of 64 x 64 over k = 64 * 9: 2 * 64 * 64 * 576 / (100e12 / 100) = 4.719 us;
    # split 8 ways: 576 / 8 steps on 8 cores, 0.5898 us, and 2 * 4 * 8 * 64 * 64 B = 0.262 us
    one = Convolution(1, 8, 8, 64, 64, 3, 3, pad_h=1, pad_w=1)
    split = conv.parts(neutral(**IDEAL), one, dtype="bf16").compute_s
    assert split == pytest.approx([0.5898e-6 + 0.2621e-6], rel=1e-3)
    # the gradient of the input splits no sum, and its smallest tile is 128 x 64
    back = conv.parts(neutral(**IDEAL), one, dtype="bf16", direction="dgrad").compute_s
    assert back == pytest.approx([2 * 4.719e-6], rel=1e-3)


def test_traffic_by_hand():
    """Input, weights and output once each; a stride of 2 under a 1 x 1 window reads a quarter."""
    same = Convolution(2, 10, 12, 16, 32, 3, 3, pad_h=1, pad_w=1)
    # 2 B * (2 * 16 * 120 + 32 * 16 * 9 + 2 * 32 * 120) = 2 * (3840 + 4608 + 7680)
    for direction in DIRECTIONS:
        assert traffic_bytes(same, dtype="bf16", direction=direction) == 32_256
    quarter = Convolution(2, 10, 12, 16, 32, 1, 1, stride_h=2, stride_w=2)
    # read 3840 / 4 = 960, weights 512, output 2 * 32 * 5 * 6 = 1920
    assert traffic_bytes(quarter, dtype="bf16", direction="forward") == 2 * (960 + 512 + 1920)
    # the gradient of the input is written whole
    assert traffic_bytes(quarter, dtype="bf16", direction="dgrad") == 2 * (3840 + 512 + 1920)
    # fp8 is read in one byte and written in two
    assert traffic_bytes(quarter, dtype="fp8", direction="forward") == 960 + 512 + 2 * 1920


def test_strided_input_gradients_fall_into_phases():
    """A 3 x 3 window at stride 2 has four phases that share its nine taps; 1 x 1 has one."""
    three = Convolution(1, 16, 16, 8, 8, 3, 3, 2, 2, 1, 1)
    assert product(three.sizes, "dgrad") == (64, 8, 8 * 9 / 4, 4)
    one = Convolution(1, 16, 16, 8, 8, 1, 1, 2, 2)
    assert product(one.sizes, "dgrad") == (64, 8, 8, 1)


@few
@given(
    m=st.integers(1, 4000),
    n=st.integers(1, 500).map(lambda size: 8 * size),
    k=st.integers(1, 500).map(lambda size: 8 * size),
)
def test_a_pointwise_convolution_is_a_matmul(m, n, k):
    """With its own factors at 1, a 1 x 1 convolution moves and takes what the matmul does."""
    hw = neutral()
    one = Convolution(m, 1, 1, k, n, 1, 1)
    expected = matmul.seconds(hw, m, n, k, dtype="bf16")
    assert conv.seconds(hw, one, dtype="bf16") == pytest.approx(expected, rel=1e-12)
    sides = {"forward": (m, n, k), "dgrad": (m, k, n), "wgrad": (k, n, m)}
    for direction, (a, b, c) in sides.items():
        assert product(one.sizes, direction) == (a, b, c, 1)
        moved = matmul.traffic_bytes(a, b, c, dtype="bf16")
        assert traffic_bytes(one, dtype="bf16", direction=direction) == pytest.approx(moved)
        floor = matmul.roofline_seconds(hw, a, b, c, dtype="bf16")
        got = conv.roofline_seconds(hw, one, dtype="bf16", direction=direction)
        assert got == pytest.approx(floor, rel=1e-12)


def test_large_pointwise_gradients_are_matmuls():
    """Where tiles fill whole waves, both gradients take the time of their matmul too."""
    hw = neutral(**IDEAL)
    one = Convolution(12_800, 1, 1, 2560, 2560, 1, 1)
    for direction, sizes in (("dgrad", (12_800, 2560, 2560)), ("wgrad", (2560, 2560, 12_800))):
        expected = matmul.seconds(hw, *sizes, dtype="bf16")
        assert conv.seconds(hw, one, dtype="bf16", direction=direction) == pytest.approx(expected)


@few
@given(shape=CONVOLUTIONS, direction=DIRECTION)
def test_every_direction_multiplies_the_same(shape, direction):
    """The product of each direction has the FLOP of the direct count."""
    m, n, k, batch = product(shape.sizes, direction)
    assert 2.0 * m * n * k * batch == pytest.approx(shape.flop, rel=1e-12)


@few
@given(shape=CONVOLUTIONS, direction=DIRECTION, dtype=st.sampled_from(["bf16", "fp32"]))
def test_no_convolution_beats_its_roofline(shape, direction, dtype):
    """Shipped parameters never undercut the peak on the fewest multiplications, or the memory."""
    for hw in (V100, A100):
        floor = conv.roofline_seconds(hw, shape, dtype=dtype, direction=direction)
        assert conv.seconds(hw, shape, dtype=dtype, direction=direction) >= floor * (1 - 1e-12)


@few
@given(shape=CONVOLUTIONS, direction=DIRECTION, dtype=st.sampled_from(["bf16", "fp32"]))
def test_more_images_take_longer_and_faster_parts_shorter(shape, direction, dtype):
    """Time grows with the batch, and falls with the peak and with the memory rate."""

    def at(hw, images=1):
        sizes = {name: getattr(shape, name) for name in shape.__dataclass_fields__}
        more = Convolution(**{**sizes, "batch": images * shape.batch})
        return conv.seconds(hw, more, dtype=dtype, direction=direction)

    assert at(V100, 2) >= at(V100) * (1 - 1e-12)
    for column in (f"peak_flop_per_s.{dtype}", "memory_bytes_per_s"):
        assert at(V100.scaled(column, 1.5)) <= at(V100) * (1 + 1e-12)


def test_winograd_counts():
    """Tiles of 4 x 4 save 4 of 1 at windows of 3 and 6.25 at 5, in fp32 at stride 1 alone."""
    three = Convolution(16, 84, 20, 256, 256, 3, 3, pad_h=1, pad_w=1)
    assert conv.multiplied_flop(three, dtype="fp32") == pytest.approx(three.flop / 4)
    five = Convolution(16, 28, 28, 192, 32, 5, 5, pad_h=2, pad_w=2)
    assert conv.multiplied_flop(five, dtype="fp32") == pytest.approx(five.flop / 6.25)
    strided = Convolution(16, 28, 28, 64, 64, 3, 3, 2, 2, 1, 1)
    oblong = Convolution(16, 28, 28, 64, 64, 3, 5, pad_h=1, pad_w=2)
    for shape, dtype in ((three, "bf16"), (strided, "fp32"), (oblong, "fp32")):
        assert conv.multiplied_flop(shape, dtype=dtype) == pytest.approx(shape.flop)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_winograd_is_taken_where_it_is_faster(direction):
    """In fp32 a large 3 x 3 takes less than its direct count at peak; in 16 bit it never does."""
    three = Convolution(16, 84, 20, 256, 256, 3, 3, pad_h=1, pad_w=1)
    single = conv.seconds(V100, three, dtype="fp32", direction=direction)
    assert three.flop / 10e12 > single
    assert single >= three.flop / 4 / 10e12
    half = conv.seconds(V100, three, dtype="bf16", direction=direction)
    assert half > three.flop / 100e12


def test_fused_winograd_by_hand():
    """Few channels make transforms in passes dear: tiles of 2 x 2 save 9 of 4 on the way."""
    # 20 images of 64 x 64, 3 x 3, 32 -> 128 channels, with ample memory. 81,920 pixels are 320
    # x 1 tiles of 256 x 128 on 100 cores, exposure 0: 3.2 waves of 2 * 256 * 128 * 32 * 4 FLOP
    # at 10e12 / 100 FLOP/s a core = 268 us; direct, 9 for 4: 604 us; in passes a multiple.
    shape = Convolution(20, 64, 64, 32, 128, 3, 3, pad_h=1, pad_w=1)
    hw = table({**NEUTRAL, **IDEAL, "matmul_wave_exposure": 0.0}, memory_bytes_per_s=1.2e12)
    got = conv.parts(hw, shape, dtype="fp32").compute_s
    assert got == pytest.approx([3.2 * 2 * 256 * 128 * 128 / 1e11], rel=1e-9)


def test_odd_channels_are_padded_and_slow_on_matrix_units():
    """Three input channels in 16 bit cost what eight do at half the rate; fp32 pads nothing."""
    hw = neutral(**IDEAL)
    three = Convolution(16, 224, 224, 3, 64, 7, 7, 2, 2, 3, 3)
    eight = Convolution(16, 224, 224, 8, 64, 7, 7, 2, 2, 3, 3)
    odd = conv.parts(hw, three, dtype="bf16").compute_s
    assert odd == pytest.approx(2 * conv.parts(hw, eight, dtype="bf16").compute_s)
    single = conv.parts(hw, three, dtype="fp32").compute_s
    assert single == pytest.approx(3 / 8 * conv.parts(hw, eight, dtype="fp32").compute_s)


def test_depthwise_is_bound_by_memory():
    """A depthwise 3 x 3 moves its two images at the memory rate, whatever tiles would waste."""
    shape = Convolution(32, 56, 56, 256, 256, 3, 3, pad_h=1, pad_w=1, groups=256)
    # 2 * 32 * 56 * 56 * 256 * 2 B = 102.8 MB at 1 TB/s; 0.46 GFLOP at half of 10 TFLOP/s: 92 us
    for direction in DIRECTIONS:
        assert conv.bound(neutral(), shape, dtype="bf16", direction=direction) == ["memory"]
    got = conv.seconds(neutral(), shape, dtype="bf16")
    assert got == pytest.approx([102.8e-6], rel=1e-3)


def test_strided_and_launch_terms_apply():
    """A stride over 1 slows the product by its factor, and the start is added once."""
    plain = Convolution(32, 56, 56, 256, 512, 3, 3, 2, 2, 1, 1)
    own = {"conv_strided_rate.fp16.forward": 0.5, "conv_start_s.fp16.forward": 1e-5}
    before = conv.parts(neutral(), plain, dtype="bf16")
    after = conv.parts(neutral(**own), plain, dtype="bf16")
    assert after.compute_s == pytest.approx(2 * before.compute_s)
    assert after.seconds == pytest.approx(after.compute_s + 1e-5)


def test_arrays_of_convolutions_equal_single_ones():
    """A batch of shapes and directions gives what each gives alone."""
    channels = np.array([3, 64, 256])
    groups = np.array([1, 1, 256])
    many = Convolution(8, 28, 28, channels, 256, 3, 3, 1, 1, 1, 1, groups)
    for dtype in ("bf16", "fp32"):
        for direction in DIRECTIONS:
            together = conv.seconds(A100, many, dtype=dtype, direction=direction)
            assert together.shape == (1, 3)
            for i in range(3):
                one = Convolution(
                    8, 28, 28, int(channels[i]), 256, 3, 3, 1, 1, 1, 1, int(groups[i])
                )
                alone = conv.seconds(A100, one, dtype=dtype, direction=direction)
                assert together[:, i] == pytest.approx(alone, rel=1e-12)


def test_systolic_chips_use_their_own_arrays():
    """On a systolic design the implicit product goes through its arrays, the images once."""
    design = Systolic(
        name="one",
        node_nm=7,
        clock_hz=1.0e9,
        cores=2,
        arrays_per_core=4,
        rows=128,
        cols=128,
        lanes_per_core=1024,
        special_per_cycle_per_core=128,
        scratchpad_bytes_per_core=32e6,
        precision="bf16",
        memory="hbm2e",
        memory_stacks=4,
        scaleup_bytes_per_s_per_dir=200e9,
        nic_bytes_per_s_per_dir=25e9,
    )
    hw = of_columns(to_chip_columns(DesignColumns.of((design,))))
    shape = Convolution(16, 28, 28, 256, 256, 3, 3, pad_h=1, pad_w=1)
    got = conv.parts(hw, shape, dtype="bf16")
    same = matmul.parts(hw, 16 * 28 * 28, 256, 256 * 9, dtype="bf16")
    assert got.compute_s == pytest.approx(same.compute_s)
    assert got.memory_s < same.memory_s
    assert got.seconds >= conv.roofline_seconds(hw, shape, dtype="bf16")


def test_printed_rates_are_reproduced():
    """FLOP over printed time is the printed rate: sizes, strides and padding are read as meant."""
    observations, _ = rows.read()
    mine = {o.id: o for o in observations if o.kind == "conv"}
    text = files("hwmodels.calibration.data").joinpath("kernels.csv").read_text(encoding="utf-8")
    printed = {
        row["id"]: float(row["tflops"] or 0) * 1e12
        for row in csv.DictReader(text.splitlines())
        if row["id"] in mine
    }
    ratio = [
        float(Convolution(*o.sizes).flop) / o.measured_s / printed[o.id]
        for o in mine.values()
        if printed[o.id]
    ]
    assert len(mine) == 544
    assert len(ratio) >= 543
    assert ratio == pytest.approx(np.ones(len(ratio)), rel=1e-3)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"batch": 0}, "batch"),
        ({"groups": 0}, "groups"),
        ({"groups": 3}, "groups"),
        ({"pad_h": -1}, "pad_h"),
        ({"in_channels": float("nan")}, "in_channels"),
        ({"kernel_w": 9}, "kernel_w"),
    ],
)
def test_impossible_sizes_are_refused(change, field):
    """Sizes below their least, uneven groups and windows too large name their field."""
    sizes = {"batch": 1, "height": 8, "width": 8, "in_channels": 8, "out_channels": 8}
    with pytest.raises(ConfigError) as caught:
        Convolution(**{**sizes, "kernel_h": 3, "kernel_w": 3, **change})
    assert caught.value.field == field


def test_unknown_directions_dtypes_and_peaks_are_refused():
    """What no parameter covers is refused by name."""
    shape = Convolution(1, 8, 8, 8, 8, 3, 3)
    with pytest.raises(UnsupportedError, match="backward"):
        conv.seconds(A100, shape, dtype="bf16", direction="backward")
    with pytest.raises(UnsupportedError, match="int3"):
        conv.seconds(A100, shape, dtype="int3")
    with pytest.raises(UnsupportedError, match=re.escape("no peak for fp8")):
        conv.roofline_seconds(A100, shape, dtype="fp8")
