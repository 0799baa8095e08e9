"""Predictions outside what measured rows cover are marked, with what and how far.

ai-dynamo/aiconfigurator #1396: 883.7 tokens/s a GPU predicted, 192.4 measured, on 8 x B200.
"""

from __future__ import annotations

import json
from importlib import resources

import pytest

import dse
from dse.extrapolation import WORTH, extrapolated, ranges
from dse.items import OperatorItem
from dse.validate.ranges import measured_ranges
from hwmodels import load_cluster


def marks(model="llama-3-8b", machine="dgx-h100", chips=64, *, seq_length=4096, precision="bf16",
          **fields):  # fmt: skip
    """What a report says is extrapolated, one text an item."""
    plan = dse.Plan(**{"tp": 2, "global_batch_size": 128} | fields)
    report = dse.evaluate(
        model,
        machine,
        plan,
        chips=chips,
        seq_length=seq_length,
        precision=precision,
        must_fit=False,
    )
    told = [text for text in report.warnings if text.startswith("extrapolated: ")]
    return told[0].removeprefix("extrapolated: ").split("; ") if told else []


@pytest.mark.parametrize(
    ("model", "machine", "chips", "fields"),
    [
        ("llama-3-70b", "dgx-h100", 1024, {"tp": 8, "pp": 4, "global_batch_size": 1024}),
        ("gpt3-175b", "dgx-a100-80gb", 1024, {"tp": 8, "pp": 8, "global_batch_size": 1024}),
        ("llama-3-8b", "dgx-b200", 8, {}),
    ],
)
def test_what_rows_cover_is_not_marked(model, machine, chips, fields):
    """Plans, sizes and chips like those of published runs carry no mark."""
    seq_length = 2048 if model == "gpt3-175b" else 4096
    assert marks(model, machine, chips, seq_length=seq_length, **fields) == []


def test_routed_experts_on_eight_b200_are_marked():
    """No run that told a level divides experts: 8 ranks of them are beyond 1."""
    found = marks("mixtral-8x7b", "dgx-b200", 8, tp=1, ep=8, global_batch_size=64)
    assert "ep 8 (published runs reach 1)" in found


def test_a_format_without_rows_is_marked():
    """No row times a matmul in 8 bits on an MI300X; on an H100 some do."""
    fp8 = marks("llama-3-8b", "8x-mi300x", 8, precision="fp8")
    assert any(text.startswith("matmuls in fp8 (none was measured on mi300x") for text in fp8)
    assert not any("matmuls in fp8" in text for text in marks(precision="fp8"))


def test_a_chip_generation_without_runs_is_marked():
    """MI300X: two matmuls of 2.2e12 and 2.6e12 FLOP were measured, no training run was read."""
    first, second = marks("llama-3-8b", "8x-mi300x", 8)
    assert first == "chip generation mi300x (no published training run told a level on it)"
    assert second.startswith("matmuls of ")
    assert "(measured 2.2e+12 to 2.6e+12 on mi300x)" in second


def test_a_chip_without_kernel_rows_is_marked():
    """A TPU v5p has neither runs nor matmuls among the rows."""
    assert marks("llama-3-8b", "tpuv5p-pod", 64) == [
        "chip generation tpuv5p (no published training run told a level on it)",
        "matmuls of every size (none was measured on tpuv5p)",
    ]


@pytest.mark.parametrize(
    ("seq_length", "text"),
    [
        (8192, ""),
        (8320, "sequences of 8320 tokens (published runs on gh100 reach 8192)"),
        (512, ""),
        (384, "sequences of 384 tokens (published runs start at 512)"),
    ],
)
def test_sequences_beyond_the_runs_are_marked(seq_length, text):
    """Runs on H100 have 512 (anywhere) to 8192 tokens; the first step outside is marked."""
    found = [mark for mark in marks(seq_length=seq_length) if mark.startswith("sequences")]
    assert found == ([text] if text else [])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tp": 2, "cp": 2}, ""),
        ({"tp": 2, "cp": 4}, "cp 4 (published runs reach 2)"),
    ],
)
def test_groups_beyond_the_runs_are_marked(fields, text):
    """Context parallel groups of two were published, of four not."""
    found = [mark for mark in marks(**fields) if mark.startswith("cp ")]
    assert found == ([text] if text else [])


def test_jobs_beyond_the_runs_are_marked():
    """The largest H100 run has 10752 chips; 16384 are beyond, and so is dp 2048 beyond 336."""
    found = marks("llama-3-70b", chips=16384, tp=8, global_batch_size=4096)
    assert "16384 chips (published runs on gh100 reach 10752)" in found
    assert "dp 2048 (published runs reach 336)" in found


def matmul(m, n, k, time_s):
    shape = {"m": float(m), "n": float(n), "k": float(k), "batch": 1.0}
    return OperatorItem("x", "matmul", shape, 1.0, time_s, "compute")


@pytest.mark.parametrize(
    ("sides", "time_s", "text"),
    [
        # 2 * 1024^3 = 2.1e9 FLOP is covered; 2 * 512^3 = 2.7e8 is below 5.4e8.
        ((1024, 1024, 1024), 1.0, None),
        ((512, 512, 512), 0.06, "matmuls of 2.7e+08 to 2.7e+08 FLOP (measured 5.4e+08 to 7e+13 "
         "on gh100), 6 % of the step"),
        ((512, 512, 512), 0.04, None),
        ((128, 4096, 4096), 0.5, "matmuls with a side of 128 (measured from 192 on gh100), "
         "50 % of the step"),
    ],
)  # fmt: skip
def test_matmuls_outside_the_rows_are_marked_where_they_count(sides, time_s, text):
    """By work and by shortest side, from 5 % of a step of one second."""
    assert WORTH == 0.05
    cluster = load_cluster("dgx-h100", num_chips=8)
    workload = dse.make_workload(dse.load_model("llama-3-8b"), 4096)
    plan = dse.Plan(global_batch_size=8).resolved(8)
    found = extrapolated(workload, cluster, plan, [matmul(*sides, time_s)], 1.0)
    assert found == (() if text is None else (text,))


def test_the_shipped_ranges_are_those_of_the_rows():
    """`python -m dse.validate.ranges` writes what the package ships."""
    text = resources.files("dse").joinpath("ranges.yaml").read_text(encoding="utf-8")
    assert json.loads(text) == measured_ranges() == ranges()
