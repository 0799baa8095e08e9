"""Kernel calibration: errors in and out of sample; the shipped files are what a fit gives."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest

from hwmodels.calibration import fit, kernels, predict, rows, validate
from hwmodels.errors import ConfigError
from hwmodels.kernels import parameters

HEADER = (
    "id,source,hardware,kernel,library,dtype,m,n,k,batch,seq,heads,kv_heads,head_dim,causal,"
    "direction,time_ms,tflops,gb_per_s,notes,verified\n"
)
CONVOLUTION = '"W=28 H=28 C=64 K=64 filter 3x3 pad 1,1 stride 1,1 groups 64"'


@pytest.fixture(scope="module")
def report():
    return validate.validate_kernels()


@pytest.fixture(scope="module")
def observations():
    return rows.read()[0]


def held_out_table():
    text = files("hwmodels.calibration.data").joinpath("held_out.csv").read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines())


def median(report, table, kernel, silicon):
    return report["held_out"][table][kernel][silicon]["median_abs_error_pct"]


@pytest.mark.parametrize(
    ("silicon", "limit"), [("ga100", 5.0), ("gh100", 5.0), ("gb100", 5.0), ("gv100", 6.0)]
)
def test_matmul_error_with_shapes_left_out(report, silicon, limit):
    """The median matmul error on shapes that a fit has not seen stays within 5 to 6 %."""
    assert median(report, "shape_left_out", "matmul", silicon) <= limit


@pytest.mark.parametrize("silicon", ["ga100", "gh100", "gb100", "gv100"])
def test_matmul_error_with_the_silicon_left_out(report, silicon):
    """The other silicons' parameters predict a silicon's matmuls to a median of 12 %."""
    assert median(report, "silicon_left_out", "matmul", silicon) <= 12.0


@pytest.mark.parametrize("silicon", ["ga100", "gh100"])
def test_attention_errors(report, silicon):
    """Attention stays within a median of 5 % on unseen lengths and 10 % on an unseen silicon."""
    assert median(report, "shape_left_out", "attention", silicon) <= 5.0
    assert median(report, "silicon_left_out", "attention", silicon) <= 10.0


@pytest.mark.parametrize(("label", "limit"), [("conv", 11.0), ("conv fp32", 12.0)])
def test_convolution_error_with_shapes_left_out(report, label, limit):
    """The median error of a convolution on unseen shapes stays within 12 % in both precisions."""
    assert median(report, "shape_left_out", label, "gv100") <= limit


def test_convolution_parameters_are_what_a_refit_gives(observations):
    """Refitting the forward pass in 16 bit returns the shipped level and left-out predictions."""
    shipped, _ = parameters.for_silicon("gv100", vendor="NVIDIA")
    chosen = kernels.conv_rows(observations, "gv100", "fp16", "forward")
    free = {name: [name] for name in kernels.conv_free("fp16", "forward")}
    again = fit.fit(chosen, free, shipped)
    assert len(chosen) == 94
    for name in ("conv_rate.fp16.forward", "conv_start_s.fp16.forward", "conv_misaligned_rate"):
        assert again.values[name] == pytest.approx(shipped[name], rel=0.02)
        assert again.low[name] < again.values[name] < again.high[name]
    stored = {r["id"]: r["shape_left_out_s"] for r in held_out_table()}
    expected = np.array([float(stored[o.id]) for o in chosen])
    assert again.held_out_s == pytest.approx(expected, rel=0.02)


def test_convolution_parameters_elsewhere_are_transferred_or_assumed():
    """Only V100's convolutions count as measured; others say so and bring a wider range."""
    own = parameters.parameters_for("gv100", vendor="NVIDIA")
    other = parameters.parameters_for("ga100", vendor="NVIDIA")
    maker = parameters.parameters_for("mi300x", vendor="AMD")
    names = [name for name in own if name.startswith("conv_")]
    assert len(names) == 42
    for name in names:
        if name == "conv_grouped_efficiency":
            assert own[name].status == "assumed"
            continue
        found = [known[name] for known in (own, other, maker)]
        assert [entry.status for entry in found] == ["measured", "transferred", "assumed"]
        widths = [entry.high - entry.low for entry in found]
        assert widths[0] < widths[1] < widths[2]
        if "_rate" in name or "_efficiency" in name:
            assert found[2].low > 0.1


@pytest.mark.parametrize(
    ("kernel", "limit"),
    [
        ("matmul", 5.5),
        ("conv", 10.0),
        ("attention", 4.0),
        ("memory rate", 3.0),
        ("pass", 20.0),
    ],
)
def test_error_by_class_with_shipped_parameters(report, kernel, limit):
    """The shipped files reproduce the error of each class; growth past it fails."""
    assert report["by_class"][kernel]["median_abs_error_pct"] <= limit


def test_large_products_that_only_judge(report):
    """Products over 100 us that no fit has seen are within a median of 11 %."""
    errors = [
        abs(record["error_pct"])
        for record in report["records"]
        if record["status"] == "evaluated"
        and record["class"] == "matmul"
        and not record["fitted_on"]
        and record["suspect"] is None
        and record["measured"] > 1e-4
    ]
    assert len(errors) > 25
    assert np.median(errors) <= 11.0


def test_the_roofline_baseline_is_beaten(report):
    """In every class with fitted rows the model errs less than half as much as the roofline."""
    for kernel in ("matmul", "conv", "attention", "memory rate"):
        found = report["by_class"][kernel]
        assert found["median_abs_error_pct"] < 0.5 * found["baseline_median_abs_error_pct"]


def test_intervals_cover_what_they_say(report):
    """The 80 % interval holds 74 to 86 % of rows, fitted ones by left-out predictions."""
    assert 74 <= report["coverage_80_pct"] <= 86
    assert 74 <= report["unseen"]["coverage_80_pct"] <= 86


def test_every_row_is_evaluated_or_refused_by_a_listed_reason(report):
    """Evaluated and refused rows add up to the file, and reasons are from the closed list."""
    assert report["rows"] == 2671
    assert report["evaluated"] + sum(report["refused"].values()) == report["rows"]
    assert set(report["refused"]) <= set(rows.REFUSALS)
    assert report["by_class"]["conv"]["rows"] == 544
    assert len(report["records"]) == report["rows"]
    json.dumps(report)


def test_no_prediction_beats_the_roofline(report):
    """Each predicted time is at least the time at peak, whatever the conditions."""
    for record in report["records"]:
        if record["status"] == "evaluated":
            assert record["predicted"] >= record["baseline"] * (1 - 1e-9), record["id"]


def test_suspect_rows_are_shown_and_never_fitted(report, observations):
    """The 18 slow large products of GB200 and the 98 fp8 rows with a fixed cost are set apart."""
    suspects = [o for o in observations if o.suspect is not None]
    assert not any(o.fits for o in suspects)
    gb200 = [o for o in suspects if o.device.silicon == "gb100"]
    assert len(gb200) == 18
    assert all(o.sizes[0] >= 8192 for o in gb200)
    assert sum(o.dtype == "fp8" for o in suspects) == 98
    shown = {record["id"] for record in report["records"] if record["status"] == "evaluated"}
    assert {o.id for o in suspects} <= shown


def test_judging_sources_are_never_fitted(observations):
    """LLMCompass and the TPU recipes judge only; recalled rows set nothing."""
    fitted = {o.prefix for o in observations if o.fits}
    assert fitted == set(rows.FIT_SOURCES)
    assert not fitted & {"LLMC", "TPUR", "PRIM"}


def test_coverage_table_names_what_no_row_covers(report):
    """Optimizer, gather, grouped matmul and most backward passes are listed as assumed."""
    assumed = {entry["class"] for entry in report["coverage"] if entry["status"] == "assumed"}
    assert {"optimizer", "embedding and gather", "grouped matmul"} <= assumed
    assert "convolution, except on the V100" in assumed
    measured = [entry for entry in report["coverage"] if entry["status"] == "measured"]
    attention = [entry for entry in measured if entry["class"] == "attention"]
    backward = {entry["chip"] for entry in attention if entry["direction"] != "forward"}
    assert backward == {"A100-SXM4-80GB"}


def test_left_out_predictions_are_what_a_refit_gives(observations):
    """Refitting attention with its lengths left out returns the stored predictions."""
    stored = {row["id"]: row["shape_left_out_s"] for row in held_out_table()}
    known, _ = parameters.for_silicon("gh100", vendor="NVIDIA")
    chosen = kernels.attention_rows(observations, ("gh100",))
    again = kernels.attention_fit(observations, ("gh100",), known)
    expected = np.array([float(stored[o.id]) for o in chosen])
    assert again.held_out_s == pytest.approx(expected, rel=0.02)


def test_shipped_parameters_are_what_a_refit_gives(observations):
    """Refitting the A100's matmuls returns the shipped level and predictions."""
    shipped, _ = parameters.for_silicon("ga100", vendor="NVIDIA")
    chosen = kernels.select(observations, "matmul", "ga100", kernels.SIXTEEN_BIT)
    again = kernels.matmul_fit(chosen, "ga100")
    name = "matmul_efficiency.bf16"
    assert again.values[name] == pytest.approx(shipped[name], rel=0.02)
    groups = predict.grouped(chosen)
    assert again.predicted_s == pytest.approx(predict.seconds(groups, shipped), rel=0.05)
    assert again.low[name] <= again.values[name] <= again.high[name]


def test_a_fit_finds_the_parameters_that_made_the_data(observations):
    """Times made by the model with known parameters return these parameters."""
    chosen = kernels.attention_rows(observations, ("gh100",))
    known, _ = parameters.for_silicon("gh100", vendor="NVIDIA")
    truth = {**known, "attention_efficiency": 0.6, "attention_start_s": 2e-5}
    made = predict.seconds(predict.grouped(chosen), truth)
    synthetic = [replace(o, measured_s=float(t)) for o, t in zip(chosen, made, strict=True)]
    free = {name: [name] for name in ("attention_efficiency", "attention_start_s")}
    found = fit.solve(synthetic, free, known, np.ones(len(synthetic)))
    assert found["attention_efficiency"] == pytest.approx(0.6, rel=1e-3)
    assert found["attention_start_s"] == pytest.approx(2e-5, rel=1e-2)


def test_folds_keep_a_shape_together(observations):
    """Rows of one weight shape are left out together."""
    chosen = kernels.select(observations, "matmul", "ga100", kernels.SIXTEEN_BIT)
    fold = fit.shape_folds(chosen, 5)
    by_shape: dict[tuple[float, ...], set[int]] = {}
    for o, number in zip(chosen, fold, strict=True):
        by_shape.setdefault(o.sizes[1:3], set()).add(int(number))
    assert all(len(numbers) == 1 for numbers in by_shape.values())
    assert set(fold.tolist()) == set(range(5))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("X-1,mine,Abacus,gemm,,bf16,8,8,8,,,,,,,fwd,1,,,,yes", "unknown hardware"),
        ("X-1,mine,GB200,gemm,,int3,8,8,8,,,,,,,fwd,1,,,,yes", "unknown dtype"),
        ("X-1,mine,GB200,gemm,,bf16,8,,8,,,,,,,fwd,1,,,,yes", "configuration not stated"),
        ("X-1,mine,GB200,gemm,,bf16,8,8,8,,,,,,,fwd,,,,,yes", "no time or rate"),
        ("X-1,mine,GB200,gemm,,bf16,8,8,8,,,,,,,fwd,1,,,,memory", "recalled"),
        ("X-1,mine,GB200,conv2d,,bf16,,,,8,,,,,,fwd,1,,,a window,yes", "configuration not stated"),
        ("X-1,mine,GB200,conv2d,,bf16,,,,8,,,,,,up,1,,,{conv},yes", "configuration not stated"),
        ("X-1,mine,GB200,conv2d,,bf16,,,,8,,,,,,fwd,,,,{conv},yes", "no time or rate"),
        ("X-1,mine,GB200,fft,,bf16,8,8,8,,,,,,,fwd,1,,,,yes", "unknown kernel"),
        ("X-1,mine,GB200,attention,,bf16,,,,1,8,8,8,64,,fwd,1,,,,yes", "configuration not stated"),
    ],
)
def test_rows_that_cannot_be_judged_are_refused_by_reason(tmp_path, line, reason):
    """Each way of being unusable has its reason."""
    path = tmp_path / "rows.csv"
    text = line.replace("{conv}", CONVOLUTION)
    path.write_text(HEADER + text + "\n", encoding="utf-8")
    assert validate.validate_kernels(path)["refused"] == {reason: 1}


def test_own_convolutions_are_judged_with_an_assumed_width(tmp_path):
    """A stranger's depthwise row on another chip is evaluated, its parameters transferred."""
    path = tmp_path / "rows.csv"
    row = f"X-1,mine,GB200,conv2d,,bf16,,,,8,,,,,,bwd_data,0.1,,,{CONVOLUTION},yes\n"
    path.write_text(HEADER + row, encoding="utf-8")
    (record,) = validate.validate_kernels(path)["records"]
    assert record["status"] == "evaluated"
    assert record["predicted"] > record["baseline"]
    assert record["high_80"] > 1.9 * record["predicted"]
    assert "convolution parameters are those of another silicon" in record["assumed"]
    assert record["provenance_share"]["transferred"] > record["provenance_share"]["measured"]


def test_own_rows_are_judged_without_having_been_fitted(tmp_path):
    """A stranger's matmul row is evaluated, with a predicted time and an interval around it."""
    path = tmp_path / "rows.csv"
    row = "X-1,mine,GB200,gemm,,bf16,4096,4096,4096,,,,,,,fwd,0.1,,,,yes\n"
    path.write_text(HEADER + row, encoding="utf-8")
    (record,) = validate.validate_kernels(path)["records"]
    assert record["fitted_on"] is False
    assert record["low_80"] < record["predicted"] < record["high_80"]
    assert record["measured"] == pytest.approx(1e-4)


def test_unreadable_files_are_config_errors(tmp_path):
    """A missing file, a binary file and a file without the columns are refused by name."""
    with pytest.raises(ConfigError, match="cannot read"):
        rows.read(tmp_path / "none.csv")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot read"):
        rows.read(binary)
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="hardware"):
        rows.read(other)
