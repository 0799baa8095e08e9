"""Designs at their exact best plans: equal to brute force, monotone, resumable."""

from pathlib import Path

import numpy as np
import pytest

from dse.plan import AXES
from dse.rules import Job
from dse.stacks import calibrated_stack
from dse.step import StepModel
from hwmodels.catalog import load_cluster
from hwmodels.errors import ConfigError, InfeasibleError, UnitError
from hwmodels.sourced import document
from hwmodels.table import HardwareTable
from search.catalogued import catalogued
from search.hardware import explore
from search.inner import PlanSolver, plan_of
from search.judge import Judge, Verdicts
from search.objectives import Bills, aggregated, front_rows, metrics
from search.sensitivity import elasticities, elasticities_replanned
from search.space import PlanSpace, named_space
from search.space_file import load_space, read_space
from search.study import values_of

SPACE = """
kind: space
models:
  - {model: gpt3-1.3b, global_batch_size: 64, seq_length: 2048}
chips: 16
template:
  node_nm: 5
  clock: {low: "0.8 GHz", high: "1.2 GHz", step: "0.2 GHz"}
  cores: [2, 4, 8]
  arrays_per_core: 4
  rows: 128
  cols: 128
  lanes_per_core: 1024
  special_per_cycle_per_core: 256
  scratchpad_per_core: "8 MiB"
  memory: hbm3
  memory_stacks: [1, 2]
network:
  scaleup: ["100 GB/s", "400 GB/s"]
  nic: "200 Gb/s"
  scaleup_size: [4, 8]
constraints:
  tdp: "400 W"
objectives: [throughput]
"""


def space(text=SPACE, **changes):
    for old, new in changes.items():
        text = text.replace(old, new)
    return read_space(document(text, "small.yaml", ("space",)))


EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.yaml"))
CATALOGUE = """
kind: space
models:
  - {model: gpt3-1.3b, global_batch_size: 64, seq_length: 2048}
chips: 32
chip: [h100-sxm5-80gb, a100-sxm4-80gb]
network:
  scaleup_size: [4, 8]
  nic: ["100 Gb/s", "400 Gb/s"]
  topology: [switch, torus-3d]
objectives: [throughput_per_usd]
"""


# The inner search ------------------------------------------------------------------------------


def brute_force(judge, index):
    """Step time and plan of the fastest plan that fits, every plan priced on every design."""
    designs = judge.candidates(index)
    jobs = judge.space.jobs
    times = np.full((len(index), len(jobs)), np.inf)
    plans = {}
    for rows in designs.groups(np.ones(len(index), dtype=bool)):
        hardware = designs.hardware(rows)
        for place, job in enumerate(jobs):
            stack = judge.space.stack_on(designs.silicon(rows[0]))
            model = StepModel(job.workload, hardware, stack)
            space = PlanSpace(
                named_space("compact"),
                Job(job.workload.config, job.workload.seq_length, hardware.num_chips),
                job.global_batch_size,
            )
            for chunk in space.chunks():
                time_s = model.evaluate(chunk).step_time_s
                peak = model.memory(chunk).peak_bytes
                time_s = np.where(peak <= model.usable_bytes[:, None], time_s, np.inf)
                for at, row in enumerate(rows):
                    best = int(np.argmin(time_s[at]))
                    if time_s[at, best] < times[row, place]:
                        times[row, place] = time_s[at, best]
                        plans[row, place] = chunk.plan(best)
    return times, plans


@pytest.mark.parametrize(
    "text",
    [
        SPACE,
        CATALOGUE,
        SPACE.replace("scaleup_size: [4, 8]", "scaleup_size: 8\n  topology: [switch, torus-3d]"),
        SPACE.replace("gpt3-1.3b", "mixtral-8x7b").replace(
            "memory_stacks: [1, 2]", "memory_stacks: 4"
        ),
        SPACE.replace("chips: 16", "chips: [8, 16]").replace("hbm3", "hbm2e"),
    ],
    ids=["template", "catalogue", "torus", "experts", "chips and little memory"],
)
def test_every_design_is_judged_at_the_best_plan_of_brute_force(text):
    """Bounds and batches lose nothing: times are those of pricing every plan, to the last bit."""
    judge = Judge(space(text))
    index = np.arange(judge.space.size)
    verdicts = judge(index)
    times, plans = brute_force(judge, index)
    fits = np.isfinite(verdicts.step_time_s[:, 0])
    assert fits.sum() >= 8
    np.testing.assert_array_equal(verdicts.step_time_s[fits], times[fits])
    for row in np.flatnonzero(fits):
        assert plan_of(verdicts.plans[row, 0]) == plans[row, 0]
    # A design without a plan either broke a constraint before, or has none by brute force.
    for row in np.flatnonzero(~fits):
        before = any(
            column[row] > 0 for name, column in verdicts.excess.items() if name != "memory"
        )
        assert before or not np.isfinite(times[row, 0])


def test_one_call_for_many_designs_equals_many_calls():
    """A design's verdict does not depend on its neighbours in the batch."""
    judge = Judge(space())
    together = judge(np.arange(judge.space.size))
    for number in (0, 7, judge.space.size - 1):
        alone = judge(np.array([number]))
        assert alone.step_time_s[0, 0] == together.step_time_s[number, 0]
        assert alone.plans[0].tolist() == together.plans[number].tolist()
        np.testing.assert_allclose(alone.tdp_w[0], together.tdp_w[number], rtol=1e-12)


def test_verdicts_survive_json():
    """What is kept of a design gives the same columns back."""
    import json

    verdicts = Judge(space())(np.arange(12))
    kept = [json.loads(json.dumps(verdicts.record(row))) for row in range(12)]
    again = Verdicts.of_records(kept)
    np.testing.assert_array_equal(again.step_time_s, verdicts.step_time_s)
    np.testing.assert_array_equal(again.plans, verdicts.plans)
    np.testing.assert_array_equal(again.feasible, verdicts.feasible)
    for name, column in verdicts.metrics.items():
        np.testing.assert_array_equal(again.metrics[name][again.feasible], column[again.feasible])


def test_the_full_space_is_never_slower_and_the_bar_changes_nothing():
    """Full holds compact; telling the solver a time that is reached only saves work."""
    judge = Judge(space())
    designs = judge.candidates(np.arange(8))
    rows = next(designs.groups(np.ones(8, dtype=bool)))
    hardware = designs.hardware(rows)
    compact = judge.solver(0, 16, "template").solve(hardware)
    full = judge.solver(0, 16, "template", "full").solve(hardware)
    told = judge.solver(0, 16, "template", "full").solve(hardware, compact.step_time_s)
    assert np.all(full.step_time_s <= compact.step_time_s)
    np.testing.assert_array_equal(told.step_time_s, full.step_time_s)
    np.testing.assert_array_equal(told.plans, full.plans)
    assert told.priced <= full.priced


def test_nothing_that_fits_is_a_constraint_with_the_amount():
    """A design too small for the model at any plan says by how much, as a share of its memory."""
    judge = Judge(space(SPACE.replace("gpt3-1.3b", "gpt3-175b").replace("hbm3", "hbm2")))
    verdicts = judge(np.arange(judge.space.size))
    assert not verdicts.feasible.any()
    tight = verdicts.excess["memory"]
    allowed = np.isfinite(tight) & (tight > 0)
    assert allowed.any()
    assert np.all(verdicts.plans[allowed][:, 0, AXES.index("tp")] >= 1)


# Costs, caps, objectives -----------------------------------------------------------------------


def test_nothing_that_varies_is_free():
    """One step up on any axis of chip or network raises the price or the power of the cluster."""
    study = space(
        SPACE.replace(
            "scaleup_size: [4, 8]", "scaleup_size: [1, 8]\n  oversubscription: [2, 1]\n  radix: 4"
        )
        .replace('scratchpad_per_core: "8 MiB"', 'scratchpad_per_core: ["8 MiB", "16 MiB"]')
        .replace('nic: "200 Gb/s"', 'nic: ["200 Gb/s", "400 Gb/s"]')
        .replace("lanes_per_core: 1024", "lanes_per_core: [512, 1024]")
        .replace(
            "  memory: hbm3\n",
            '  memory: hbm3\n  memory_rate_per_stack: ["600 GB/s", "800 GB/s"]\n',
        )
    )
    judge = Judge(study)
    base = np.zeros((1, len(study.axes)), dtype=np.int64)
    for place, axis in enumerate(study.axes):
        if len(axis) == 1:
            continue
        up = base.copy()
        up[0, place] = 1
        if axis.name == "oversubscription":  # ascending is less network
            base, up = up, base
        both = judge.candidates(study.index(np.concatenate([base, up]))).capped()
        dearer = both["capital"][0][1] > both["capital"][0][0]
        hungrier = both["power"][0][1] > both["power"][0][0]
        assert dearer or hungrier, axis.name
        base = np.zeros_like(base)


def test_capital_and_power_are_the_sums_of_their_parts():
    """Of the cluster: chips at their markup and the network; TDP and the network's power."""
    study = space(SPACE + "economics: {markup: 3}\n")
    designs = Judge(study).candidates(np.arange(study.size))
    costs, amounts = designs.costs, designs.capped()
    np.testing.assert_allclose(
        amounts["capital"][0], 16 * (3 * costs.price_usd.median + costs.network_usd.median)
    )
    np.testing.assert_allclose(
        amounts["power"][0], 16 * (costs.tdp_w.median + costs.network_w.median)
    )


def test_objectives_by_hand():
    """100 chips of 500 W and 100 W of network, 2,000 + 500 USD a chip, 10^5 tokens/s at half use.

    Peak 100 x 600 W = 60 kW: 10^5 / 6e4 = 1.6667 tokens/s/W. Half of the matrix units idle saves
    0.4 x 0.5 of the TDP: 100 x (500 x 0.8 + 100) x 1.2 = 60 kW: 0.6 J a token. Capital 100 x 2,500
    = 250 kUSD; energy over 10^8 s at 0.5 use: 6e4 x 5e7 / 3.6e6 kWh x 0.1 = 83,333 USD; tokens
    10^5 x 5e7 = 5e12: 5e12 / 333,333 = 1.5e7 a dollar.
    """
    study = space(
        SPACE + 'economics: {pue: 1.2, utilisation: 0.5, markup: 1, life: "100000000 s", '
        'electricity: "0.1 USD/kWh"}\n'
    )
    one = np.ones(1)
    bills = Bills(100 * one, 500 * one, 100 * one, 2000 * one, 500 * one, 0.4 * one)
    found = metrics(study, np.array([[1e5]]), np.array([[0.5]]), bills)
    assert found["throughput"][0, 0] == 1e5
    assert found["throughput_per_w"][0, 0] == pytest.approx(1e5 / 6e4)
    assert found["energy_per_token"][0, 0] == pytest.approx(0.6)
    assert found["throughput_per_usd"][0, 0] == pytest.approx(1.5e7)


TWO_MODELS = SPACE.replace(
    "chips: 16",
    "  - {model: gpt3-350m, global_batch_size: 64, seq_length: 2048, weight: 3}\nchips: 16",
)


def test_models_aggregate_by_weighted_geometric_mean_or_worst_regret():
    """(2^1 16^3)^(1/4) = 9.51; the regret is the worst share of what is best for each model."""
    mean = space(TWO_MODELS)
    regret = space(TWO_MODELS + "aggregate: worst-regret\n")
    values = np.array([[2.0, 16.0], [4.0, 8.0]])
    best = np.array([4.0, 16.0])
    np.testing.assert_allclose(
        aggregated(mean, "throughput", values, best), [8192**0.25, 2048**0.25]
    )
    np.testing.assert_allclose(aggregated(regret, "throughput", values, best), [0.5, 0.5])
    np.testing.assert_allclose(
        aggregated(regret, "energy_per_token", values, np.array([2.0, 8.0])), [2.0, 2.0]
    )


def test_a_study_of_two_models_judges_each_at_its_own_plan():
    """Both models get a plan; the aggregate of the winner is no worse than any other design's."""
    result = explore(space(TWO_MODELS), trials=30, sampler="qmc", full_plans=False)
    assert [model.model for model in result.best.models] == ["gpt3-1.3b", "gpt3-350m"]
    assert result.aggregate == "geometric-mean"
    reached = [row["throughput"] for row in result.designs() if row["feasible"]]
    assert result.best.values["throughput"] == pytest.approx(max(reached))


def test_no_design_of_the_front_beats_another():
    """Solved in full, the front is a front again, and its first is the best of the first
    objective."""
    text = SPACE.replace("[throughput]", "[throughput, throughput_per_usd]")
    result = explore(space(text), trials=60, sampler="nsga2")
    values = np.array(
        [[entry.values[o.name] for o in result.objectives] for entry in result.front]
    )
    assert front_rows(values).tolist() == list(range(len(values)))
    assert result.best == result.front[0]
    for entry in result.front:
        assert entry.models[0].step_time_s <= entry.models[0].compact_step_time_s


def test_front_rows_by_hand():
    """Beaten in both, or equal: out; the best of the first objective leads."""
    scores = np.array([[1.0, 5.0], [3.0, 3.0], [2.0, 2.0], [3.0, 3.0], [4.0, 1.0]])
    assert front_rows(scores).tolist() == [4, 1, 0]


def test_a_superset_of_a_space_never_does_worse():
    """More choices, the same caps: the optimum can only rise."""
    small = explore(space(), full_plans=False)
    large = explore(
        space(SPACE.replace("cores: [2, 4, 8]", "cores: [2, 4, 6, 8]")), full_plans=False
    )
    assert large.best.values["throughput"] >= small.best.values["throughput"]


def test_a_looser_cap_never_does_worse_and_every_front_design_keeps_it():
    """TDP at most 300 W, then 400 W."""
    tight = explore(space(SPACE.replace("400 W", "300 W")), full_plans=False)
    loose = explore(space(), full_plans=False)
    assert loose.best.values["throughput"] >= tight.best.values["throughput"]
    assert all(entry.tdp_w.median <= 300.0 for entry in tight.front)
    assert all(min(entry.slack.values()) >= 0.0 for entry in tight.front)


def test_the_study_finds_the_optimum_of_brute_force_over_designs_and_plans():
    """Every design with every plan, against the study's answer."""
    judge = Judge(space())
    index = np.arange(judge.space.size)
    times, _ = brute_force(judge, index)
    feasible = judge(index).feasible
    fastest = float(times[feasible].min())
    result = explore(judge.space, full_plans=False)
    tokens = judge.space.jobs[0].tokens_per_step
    assert result.best.values["throughput"] == tokens / fastest


@pytest.mark.parametrize(
    "objective", ["throughput", "throughput_per_w", "throughput_per_usd", "energy_per_token"]
)
def test_what_is_shown_is_what_was_searched(objective):
    """At its compact plan the winner has the value that the history ends with."""
    result = explore(space(SPACE.replace("[throughput]", f"[{objective}]")), full_plans=False)
    shown, searched = result.best.values[objective], result.history[-1].value
    assert shown == pytest.approx(searched, rel=1e-12)


def test_the_deadline_is_a_constraint():
    """10^12 tokens in 20 days need 5.8e5 tokens/s; slower designs are infeasible."""
    text = SPACE.replace(
        'tdp: "400 W"', 'tdp: "400 W"\n  deadline: {tokens: 1.0e12, time: "20 days"}'
    )
    judge = Judge(space(text))
    verdicts = judge(np.arange(judge.space.size))
    needed = 1e12 / (20 * 86400)
    slow = np.isfinite(verdicts.step_time_s[:, 0]) & (
        verdicts.metrics["throughput"][:, 0] < needed
    )
    assert slow.any()
    assert not verdicts.feasible[slow].any()


# Real machines ---------------------------------------------------------------------------------


def test_results_stand_beside_real_machines_at_their_own_best_plans():
    """A named machine gets the plan that the exact search of the full space finds for it."""
    from search.plans import search_plans

    result = explore(space(SPACE + "compare: [dgx-h100, tpuv4-pod]\n"), trials=12, sampler="qmc")
    names = [entry.name for entry in result.compared]
    assert names == ["dgx-h100", "tpuv4-pod"]
    best = search_plans(
        "gpt3-1.3b", "dgx-h100", chips=16, global_batch_size=64, seq_length=2048
    ).best[0]
    assert result.compared[0].models[0].step_time_s == pytest.approx(best.step_time_s, rel=1e-12)
    for chances in result.best.better_than.values():
        assert 0.0 <= chances["throughput"] <= 1.0
    assert result.compared[0].tdp_w.low == result.compared[0].tdp_w.high == 700.0


def test_a_machine_is_better_than_itself_half_of_the_time():
    """Two designs of one speed differ only by what is each one's own: P is about a half, and a
    machine that is slower by far more than the uncertainty never wins."""
    text = CATALOGUE.replace("[throughput_per_usd]", "[throughput]").replace(
        "[h100-sxm5-80gb, a100-sxm4-80gb]", "h100-sxm5-80gb"
    )
    same = (
        text.replace("scaleup_size: [4, 8]", "scaleup_size: 8")
        .replace('["100 Gb/s", "400 Gb/s"]', '"400 Gb/s"')
        .replace("[switch, torus-3d]", "switch")
        .replace(
            "  scaleup_size",
            "  scaleup_technology: nvlink4\n  scaleout_technology: infiniband\n  scaleup_size",
        )
    )
    result = explore(space(same + "compare: [dgx-h100, dgx-a100-80gb]\n"))
    equal = result.best.models[0].step_time_s / result.compared[0].models[0].step_time_s
    assert equal == pytest.approx(1.0, abs=0.02)
    assert 0.3 < result.best.better_than["dgx-h100"]["throughput"] < 0.7
    assert result.best.better_than["dgx-a100-640gb"]["throughput"] > 0.99


def test_machines_that_cannot_be_had_are_left_out_with_a_warning():
    """16 x DGX needs hosts of 8; 12 chips are none."""
    text = SPACE.replace("chips: 16", "chips: 12").replace("[4, 8]", "4")
    text = text.replace("global_batch_size: 64", "global_batch_size: 96")
    result = explore(
        space(text + "compare: [dgx-h100]\n"), trials=8, sampler="qmc", full_plans=False
    )
    assert result.compared == ()
    assert "dgx-h100 is left out" in result.warnings[0]


def test_a_catalogued_chip_is_priced_by_its_die_or_by_the_market():
    """A described die is priced as made, another at the market's price; published figures hold."""
    constants = Judge(space()).constants
    h100 = load_cluster("dgx-h100", num_chips=8).chip
    costs = catalogued(h100, constants)
    assert costs.price_basis.startswith("made")
    assert np.all(costs.tdp_draws_w == 700.0)
    # Bill of materials of about 3,320 USD, market price 31,250 USD.
    assert 2000 < np.median(costs.price_draws_usd) < 6000
    nameless = h100.model_copy(update={"silicon": "none"})
    assert catalogued(nameless, constants).price_basis == "market price"
    with pytest.raises(ConfigError, match="neither a price"):
        catalogued(nameless.model_copy(update={"price_usd": None}), constants)


def test_intervals_contain_the_median_and_the_seed_decides():
    """Two runs of one seed agree to the last digit."""
    first, second = (
        explore(space(), trials=12, sampler="nsga2", seed=4).model_dump() for _ in range(2)
    )
    for key in ("best", "front", "history"):
        assert first[key] == second[key]
    for name in ("area_mm2", "tdp_w", "price_usd"):
        amount = first["best"][name]
        assert amount["low"] <= amount["median"] <= amount["high"]
    low, high = first["best"]["values_80"]["throughput"]
    assert low < first["best"]["values"]["throughput"] < high


# Sensitivity -----------------------------------------------------------------------------------


def test_elasticities_of_all_rates_and_delays_sum_to_minus_one():
    """Time is homogeneous: all rates up by 1 % and all delays down by as much make everything
    faster by 1 %. Host launches are no resource, and are left out here."""
    study = space(SPACE.replace("gpt3-1.3b", "gpt3-6.7b").replace("hbm3", "hbm3e"))
    judge = Judge(study)
    table = judge.candidates(np.array([47])).hardware(np.array([0]))
    stack = study.stack_on("template").model_copy(update={"launch_s": 0.0})
    solver = PlanSolver(study.jobs[0].workload, stack, 16, 64)
    plan = plan_of(solver.solve(table).plans[0])
    slopes = elasticities(study.jobs[0].workload, stack, table, plan)
    rates = {name: slope for name, slope in slopes.items() if name.endswith("_per_s")}
    delays = {name: slope for name, slope in slopes.items() if name not in rates}
    assert all(slope <= 1e-9 for slope in rates.values())
    assert sum(rates.values()) - sum(
        slope for name, slope in delays.items() if name.endswith("_s")
    ) == pytest.approx(-1.0, abs=0.01)


def test_replanning_never_makes_a_better_machine_slower():
    """At the best plan of each row a resource gains at least what it gains at a fixed plan."""
    study = space()
    judge = Judge(study)
    designs = judge.candidates(np.array([5]))
    table = designs.hardware(np.array([0]))
    solver = judge.solver(0, 16, "template")
    plan = plan_of(solver.solve(table).plans[0])
    fixed = elasticities(study.jobs[0].workload, solver.stack, table, plan)
    free = elasticities_replanned(solver, table)
    assert fixed.keys() == free.keys()
    for name in fixed:
        assert free[name] <= fixed[name] + 1e-9


# Bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "field", "message"),
    [
        ('tdp: "400 W"', 'tdp: "40 W"', "constraints.tdp", r"no design can: tdp is at least \d"),
        ('tdp: "400 W"', 'area: "90 mm2"', "constraints.area", r"the smallest is .* mm2 over"),
        ('tdp: "400 W"', 'price: "900 USD"', "constraints.price", "USD over"),
        ('tdp: "400 W"', 'capital: "9 kUSD"', "constraints.capital", "USD over"),
        ("cores: [2, 4, 8]", "cores: [80, 96]", "template", r"reticle is at least .* mm2"),
        ('{low: "0.8 GHz", high: "1.2 GHz", step: "0.2 GHz"}', '"4 GHz"', "template", "clock"),
        ("memory_stacks: [1, 2]", "memory_stacks: [18]", "template", "memory beachfront is at"),
        ("cores: [2, 4, 8]", "cores: [0, 4]", "template.cores", "not allowed"),
        ("cores: [2, 4, 8]", "cores: [4, 4]", "template.cores", "twice"),
        ("cores: [2, 4, 8]", "cores: []", "template.cores", "empty"),
        ("cores: [2, 4, 8]", "cores: [2.5]", "template.cores", "whole number"),
        ("rows: 128", "rows: 4096", "template.rows", "not allowed"),
        ("node_nm: 5", "node_nm: 6.5", "template.node_nm", "whole number"),
        ("node_nm: 5", "node_nm: 14", "template.node_nm", "unknown node"),
        ("memory: hbm3", "memory: ddr4", "template.memory", "unknown value 'ddr4'"),
        ("memory: hbm3", "memory: hbm3\n  precision: int8", "template.precision", "int8"),
        ("chips: 16", "chips: 16\nprecision: fp7", "precision", "unknown value"),
        ("gpt3-1.3b", "gpt5", "models[0].model", "gpt5"),
        ("objectives: [throughput]", "objectives: [speed]", "objectives", "unknown objective"),
        ("objectives: [throughput]", "objectives: []", "objectives", "empty"),
        ("scaleup_size: [4, 8]", "scaleup_size: 3", "network.scaleup_size", "no design can"),
        ("step: ", "points: 3, step: ", "template.clock", "either points or step"),
        ('low: "0.8 GHz"', 'low: "3 GHz"', "template.clock.high", "not above low"),
        ("kind: space", "kind: space\ncolour: red", "colour", "unknown key"),
        ("network:", "network:\n  wires: 3", "network.wires", "unknown key"),
        ("template:", "templates:", "templates", "unknown key"),
        ("chips: 16", "chips: 16\nchip: h100-sxm5-80gb", None, "either template"),
        ("chips: 16", "chips: 16\nstart: [rtx4090]", "start", "no known silicon"),
        ("chips: 16", "chips: 16\neconomics: {pue: 0.5}", "economics.pue", "not within"),
        ("chips: 16", "chips: 16\nplans: {allow: {tp: [0]}}", "plans", "tp = '0'"),
        ("chips: 16", "chips: 16\nstack: nemo", "stack", "nemo"),
    ],
)
def test_bad_spaces_are_refused_by_field_and_amount(old, new, field, message):
    """Each says what is wrong, where, and what may be given."""
    assert old in SPACE
    with pytest.raises(ConfigError, match=message) as caught:
        explore(space(SPACE.replace(old, new)), trials=4)
    assert caught.value.field == field
    assert caught.value.file == "small.yaml"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('nic: "200 Gb/s"', "nic: 25"),
        ('nic: "200 Gb/s"', 'nic: "200G"'),
        ('tdp: "400 W"', "tdp: 400"),
        ('["100 GB/s", "400 GB/s"]', '["100 GB/s", 400]'),
        ('high: "1.2 GHz"', "high: 1.2"),
    ],
)
def test_quantities_need_their_units(old, new):
    """A bare number is refused wherever a dimension is meant, lists and grids included."""
    with pytest.raises(UnitError):
        space(SPACE.replace(old, new))


def test_an_objective_without_its_price_is_refused():
    """Tokens a dollar of a chip that nobody prices: the chip is named."""
    from hwmodels.catalog import list_chips, load_chip

    unpriced = [
        name
        for name in list_chips()
        if load_chip(name).price_usd is None
        and load_chip(name).silicon not in ("ga100", "gh100", "gv100", "tpuv4")
    ]
    assert unpriced
    text = CATALOGUE.replace("[h100-sxm5-80gb, a100-sxm4-80gb]", f"[{unpriced[0]}]")
    with pytest.raises(ConfigError, match="neither a price") as caught:
        explore(space(text), trials=4)
    assert caught.value.field == "chip"


def test_caps_that_each_can_be_kept_but_not_together_are_infeasible():
    """Not contradictory one by one: the study says which constraints break."""
    text = SPACE.replace(
        'tdp: "400 W"',
        'tdp: "150 W"\n  deadline: {tokens: 1.0e12, time: "12 days"}',
    )
    with pytest.raises(InfeasibleError, match=r"none of 72 designs .* deadline"):
        explore(space(text))


# Examples --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_runs_in_small(path):
    """A few trials of each study that ships, to the end."""
    study = load_space(path)
    result = explore(study, trials=12, sampler="random", full_plans=False)
    assert result.unique == 12
    assert result.best.values
    assert len(result.compared) == len(study.compare)
    assert values_of(study, Judge(study)(np.array([result.best.design]))).shape == (
        1,
        len(study.objectives),
    )


def test_there_are_at_least_four_examples():
    """Each answers another question."""
    assert len(EXAMPLES) >= 4


def test_a_real_cluster_as_a_row_gives_the_exact_search_of_plans():
    """The inner search of one catalogued row is the plan search."""
    from search.plans import search_plans

    cluster = load_cluster("dgx-a100-80gb", num_chips=32)
    job = space().jobs[0]
    solver = PlanSolver(job.workload, calibrated_stack(None, cluster.chip), 32, 64)
    found = solver.solve(HardwareTable.of([cluster]))
    best = search_plans(
        "gpt3-1.3b", cluster, global_batch_size=64, seq_length=2048, space="compact", top=1
    ).best[0]
    assert found.step_time_s[0] == pytest.approx(best.step_time_s, rel=1e-12)
    assert plan_of(found.plans[0]) == best.plan
