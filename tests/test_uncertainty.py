"""Reasons why a step time may be off, and joint draws of two runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dse
from dse.evaluation import NORMAL_80
from dse.stacks import calibrated_stack
from dse.stacks.levels import UNFITTED, shipped_levels
from dse.uncertainty import (
    DRAWS,
    EXPERT_SD,
    HOST_SD,
    LOW_PRECISION_SD,
    NEW_SILICON_SD,
    Reason,
    Run,
    compare,
    drawn,
    machine_draws,
    normals,
    reasons,
    spread,
    step_time_draws,
)
from hwmodels import load_cluster
from hwmodels.table import HardwareTable
from search.cli import main

PARTS = {"compute": 9.0, "tp": 1.0, "cp": 0.0, "ep": 0.0, "dp": 2.0}


def run(
    machine="dgx-h100", chips=64, *, model="llama-3-8b", precision="bf16", stack=None, **fields
):
    cluster = load_cluster(machine, num_chips=chips)
    usual = {"tp": 4, "micro_batch_size": 4, "global_batch_size": 128}
    plan = dse.Plan(**usual | fields).resolved(chips)
    workload = dse.make_workload(dse.load_model(model), 4096, precision)
    return Run(workload, cluster, calibrated_stack(stack, cluster.chip), plan)


def labels(subject, parts=PARTS):
    return {reason.label: reason for reason in reasons(subject, parts, 12.0)}


# Reasons --------------------------------------------------------------------------------------


def test_a_plain_run_has_a_level_and_a_structure():
    """A dense model on a chip that training runs told: the stack's two spreads, nothing else."""
    subject = run()
    found = labels(subject)
    assert [name.split(" ")[0] for name in found] == ["level", "structure"]
    low, high = spread(tuple(found.values()))
    assert low == high == math.hypot(subject.stack.level_sd, subject.stack.structure_sd)


@pytest.mark.parametrize(
    ("change", "word", "sd", "slow_only"),
    [
        ({"precision": "fp8"}, "low precision", LOW_PRECISION_SD, False),
        ({"model": "mixtral-8x7b"}, "experts", EXPERT_SD, False),
        ({"machine": "8x-mi300x"}, "new silicon", NEW_SILICON_SD, True),
        ({"stack": dse.load_stack("fsdp2")}, "new silicon", NEW_SILICON_SD, True),
        # 2 of 12 s exposed: log(1 + 1/6)
        ({"zero": 3, "tp": 1}, "gathers", math.log(7 / 6), True),
    ],
)
def test_kinds_of_run_that_no_row_settles(change, word, sd, slow_only):
    """Each kind adds its own reason; a new silicon and sharded gathers can only be slower."""
    found = [reason for label, reason in labels(run(**change)).items() if label.startswith(word)]
    assert found == [Reason(found[0].label, pytest.approx(sd), slow_only)]


def test_a_launch_bound_run_is_wider():
    """Launches of 32 layers in 10 s of device time bind nothing; in 1 ms they bind the step."""
    subject = run()
    bound = labels(subject, PARTS | {"compute": 1e-3, "tp": 0.0})
    assert bound["host gh100"] == Reason("host gh100", HOST_SD)
    assert "host gh100" not in labels(subject)


def test_variances_add_up():
    """0.03 and 0.04 make 0.05 either way; 0.12 towards slow makes that side 0.13."""
    found = (Reason("a", 0.03), Reason("b", 0.04), Reason("c", 0.12, slow_only=True))
    assert spread(found) == (pytest.approx(0.05), pytest.approx(0.13))


def test_the_interval_of_a_report_is_that_of_its_reasons():
    """Without transferred or assumed shares the interval is the spread at 1.2816 deviations."""
    subject = run("8x-mi300x")
    report = dse.evaluate(
        subject.workload.config, subject.cluster, subject.plan, seq_length=4096, must_fit=False
    )
    low_s, high_s = report.interval_80_s
    fast, slow = math.log(report.step_time_s / low_s), math.log(high_s / report.step_time_s)
    # What rests on shares adds the same to both sides: the difference of squares is one reason.
    assert slow**2 - fast**2 == pytest.approx((NORMAL_80 * NEW_SILICON_SD) ** 2)


# Draws ----------------------------------------------------------------------------------------


def test_draws_are_normal_and_belong_to_their_label():
    """Mean 0, deviation 1 to a per cent; equal for equal labels, uncorrelated for others."""
    one, again, other = normals("a"), normals("a"), normals("b")
    assert one.tolist() == again.tolist()
    assert one.mean() == pytest.approx(0.0, abs=1e-12)
    assert one.std() == pytest.approx(1.0, abs=0.01)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.15
    assert normals("a", seed=1).tolist() != one.tolist()


@given(
    st.floats(1e-6, 1e3),
    st.floats(0.5, 1.0),
    st.floats(1.0, 3.0),
)
def test_the_central_80_per_cent_of_a_parameter_is_its_range(value, down, up):
    """Drawn values are the estimate at 0, low and high at -1.2816 and +1.2816, and rise with z."""
    low, high = value * down, value * up
    at = np.array([-NORMAL_80, 0.0, NORMAL_80])
    assert drawn(value, low, high, at) == pytest.approx([low, value, high])
    assert (np.diff(drawn(value, low, high, np.linspace(-3, 3, 50))) >= 0).all()


def test_shares_and_times_stay_possible():
    """A share is never drawn above 1, a range that reaches 0 never below it."""
    z = np.linspace(-4, 4, 81)
    assert drawn(0.9, 0.7, 1.0, z).max() == 1.0
    assert drawn(28.0, 0.0, 45.0, z).min() == 0.0
    assert drawn(0.7, 0.0, 1.5, z).max() > 1.5


def test_machine_draws_centre_on_the_machine():
    """Middle draws hold the machine's value; columns without a range do not move."""
    cluster = load_cluster("dgx-h100", num_chips=64)
    one, many = HardwareTable.of([cluster]), machine_draws(cluster)
    assert len(many) == DRAWS
    for name, values in many.chip.items():
        below, above = np.quantile(values, (0.45, 0.55))
        assert below <= one.chip[name][0] <= above
    assert np.ptp(many.chip["memory_bytes"]) == 0.0
    assert np.ptp(many.chip["kernel.matmul_efficiency.bf16"]) > 0.0
    assert np.ptp(many.level["efficiency"][:, 0]) > 0.0
    kept = machine_draws(cluster, told=True).chip["kernel.matmul_sustained.bf16"]
    assert np.ptp(kept) == 0.0


def test_draws_spread_as_the_interval_says():
    """The draws' central 80 % holds the level and the structure: at least their width."""
    subject = run()
    low_s, high_s = np.quantile(step_time_draws(subject), (0.1, 0.9))
    alone = NORMAL_80 * math.hypot(subject.stack.level_sd, subject.stack.structure_sd)
    width = math.log(high_s / low_s) / 2.0
    assert 0.95 * alone < width < alone + 0.1


# Comparisons ----------------------------------------------------------------------------------


def test_a_run_is_as_fast_as_itself():
    """Equal runs: even odds, a ratio of exactly 1."""
    found = compare(run(), run())
    assert found.a_is_faster == 0.5
    assert found.ratio_80 == (1.0, 1.0)


def test_odds_of_a_and_b_add_up():
    """Swapping A and B swaps the odds and inverts the ratio."""
    a, b = run(), run(tp=8)
    one, other = compare(a, b), compare(b, a)
    assert one.a_is_faster + other.a_is_faster == 1.0
    assert one.ratio_80[0] == pytest.approx(1.0 / other.ratio_80[1])
    assert one.a_80_s == other.b_80_s


def test_common_draws_narrow_the_ratio():
    """Two plans of one stack: the ratio is narrower than if the two were off independently."""
    a, b = run(), run(tp=8)
    found = compare(a, b)
    apart = np.log(step_time_draws(b, seed=1) / step_time_draws(a))
    independent = np.ptp(np.quantile(apart, (0.1, 0.9)))
    together = math.log(found.ratio_80[1] / found.ratio_80[0])
    assert together < 0.95 * independent
    # What is left of the common part is structure, drawn for each plan.
    assert together > 1.8 * NORMAL_80 * a.stack.structure_sd


@pytest.mark.parametrize("level_sd", [0.0, 0.5])
def test_the_level_of_one_stack_cancels(level_sd):
    """However uncertain a stack's level, the odds between two of its plans stay."""
    a, b = run(), run(tp=8)
    wide = [
        replace(subject, stack=subject.stack.model_copy(update={"level_sd": level_sd}))
        for subject in (a, b)
    ]
    assert compare(*wide).a_is_faster == compare(a, b).a_is_faster
    assert compare(*wide).ratio_80 == pytest.approx(compare(a, b).ratio_80)


def test_much_slower_is_surely_slower():
    """Half the chips take nearly twice as long: no draw says otherwise."""
    assert compare(run(), run(chips=32)).a_is_faster == 1.0


def test_a_stack_without_a_level_is_not_told():
    """A stack priced without training runs, and a silicon without any, widen towards slow."""
    subject = run()
    blind = UNFITTED.of(subject.stack.name, "gh100")
    told = shipped_levels().of(subject.stack.name, "gh100")
    for level, wider in ((blind, True), (told, False)):
        low, high = spread(reasons(subject, PARTS, 12.0, level=level))
        assert (high > low) == wider


# The command ----------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path, monkeypatch, capsys):
    """Two saved evaluations of one job, tp 4 and tp 8."""
    monkeypatch.chdir(tmp_path)
    for name, tp in (("a", "4"), ("b", "8")):
        job = ("llama-3-8b", "dgx-h100", "--chips", "64", "--global-batch-size", "128")
        assert main(["evaluate", *job, "--tp", tp, "-o", f"{name}.json", "--quiet"]) == 0
    capsys.readouterr()
    return tmp_path


def test_compare_tells_odds_and_both_widths(saved, capsys):
    """Odds and the ratio's width under common draws, and each time's own width."""
    assert main(["compare", "a.json", "b.json", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert 0.0 <= data["a_is_faster_probability"] <= 1.0
    low, high = data["step_time_ratio_80"]
    assert low < data["step_time_ratio"] < high
    for name, (low_s, high_s) in data["drawn_80_s"].items():
        assert low_s < data[name]["step_time_s"] < high_s
    assert data["draws"] == DRAWS
    assert main(["compare", "a.json", "b.json"]) == 0
    told = capsys.readouterr().out
    assert f"A is faster in {100 * data['a_is_faster_probability']:.0f} % of {DRAWS} draws" in told
    assert "each alone (80 %): A -" in told


def test_compare_of_a_result_with_itself_is_even(saved, capsys):
    """A result against itself: 50 %, a ratio of 1 to 1."""
    assert main(["compare", "a.json", "a.json"]) == 0
    told = capsys.readouterr().out
    assert "A is faster in 50 % of 512 draws" in told
    assert "B / A is 1.000 to 1.000" in told
