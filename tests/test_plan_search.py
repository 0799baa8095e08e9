"""The exact search: it equals brute force, and its bounds never drop a winner."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dse
import hwmodels
import search
from dse.plan import AXES
from dse.rules import Job
from dse.stacks import calibrated_stack
from dse.workload.config import TransformerConfig
from hwmodels.errors import ConfigError, InfeasibleError
from search.exact import exact_search
from search.narrowing import Narrowing
from search.pareto import Incumbents, Priced, canonical_rank, front_rows
from search.space import PlanSpace, named_space


def dense():
    return TransformerConfig(
        name="small",
        family="llama",
        layers=8,
        hidden=512,
        ffn=2048,
        heads=8,
        kv_heads=8,
        vocab=1000,
        max_seq=512,
        gated=True,
        activation="silu",
        norm="rmsnorm",
        position="rotary",
    )


@dataclass(frozen=True)
class Columns:
    peak_bytes: np.ndarray = None
    peak_stage: np.ndarray = None
    step_time_s: np.ndarray = None


class Scores:
    """An evaluator of made-up scores: few distinct values, so that ties abound.

    The bound is the time scaled down by a factor that differs from plan to plan.
    """

    def __init__(self, seed, levels, available):
        rng = np.random.default_rng(seed)
        self.weight = {axis: rng.integers(1, 50, size=2) for axis in AXES}
        self.levels = levels
        self.usable_bytes = np.array([float(available)])
        self.priced = 0

    def _mix(self, table, kind):
        total = np.zeros(len(table), dtype=np.int64)
        for axis in AXES:
            total += self.weight[axis][kind] * (table.column(axis) + 1) * (kind + 3)
        return total * 2_654_435_761 % 10_007

    def memory(self, table):
        peak = (self._mix(table, 0) % self.levels + 1).astype(float)
        return Columns(peak_bytes=peak, peak_stage=table.column("pp") - 1)

    def time(self, table):
        return (self._mix(table, 1) % self.levels + 1).astype(float)

    def bound_s(self, table):
        share = 0.5 + 0.5 * (self._mix(table, 0) % 3) / 2
        return (self.time(table) * share)[None, :]

    def evaluate(self, table):
        self.priced += len(table)
        return Columns(step_time_s=self.time(table)[None, :])


def space(narrowing=None, name="full"):
    return PlanSpace(named_space(name), Job(dense(), 256, 8), 8, narrowing)


def listed(table):
    columns = table.columns()
    return list(zip(*(columns[axis].tolist() for axis in AXES), strict=True))


def everything(model, plans):
    """(time, plan, memory) of all plans that fit, from the plain product, fastest first."""
    found = []
    for table in plans.chunks():
        peak, time = model.memory(table).peak_bytes, model.time(table)
        found += [
            (t, plan, m)
            for t, plan, m in zip(time, listed(table), peak, strict=True)
            if m <= model.usable_bytes[0]
        ]
    return sorted(found)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    levels=st.sampled_from([1, 7, 300, 10_007]),
    top=st.sampled_from([1, 3, 10, 200]),
    chunk=st.sampled_from([300, 65_536]),
    share=st.floats(0.01, 1.0),
)
def test_search_equals_brute_force(seed, levels, top, chunk, share):
    """Best plans and front equal those of all plans priced and sorted, whatever the chunks."""
    model = Scores(seed, levels, available=max(1.0, share * levels))
    plans = space()
    found = exact_search(model, plans.chunks(chunk), top=top)
    truth = everything(model, plans)
    if not truth:
        assert found.best is None
        assert found.front is None
        return
    expected = truth[:top]
    assert found.best.time_s.tolist() == [time for time, _, _ in expected]
    assert listed(found.best.table) == [plan for _, plan, _ in expected]
    front = []
    for time, plan, memory in sorted(truth, key=lambda row: (row[2], row[0], row[1])):
        if not front or time < front[-1][0]:
            front.append((time, plan, memory))
    assert found.front.time_s.tolist() == [time for time, _, _ in front]
    assert found.front.memory_bytes.tolist() == [memory for _, _, memory in front]
    assert listed(found.front.table) == [plan for _, plan, _ in front]
    assert found.evaluated == model.priced
    assert found.enumerated == plans.count() == found.evaluated + sum(found.discarded.values())
    assert found.enumerated - found.discarded["memory"] == len(truth)


def test_bounds_do_drop_plans():
    """With a fair bound most plans are never priced, and the counts say so."""
    model = Scores(1, 10_007, available=1e9)
    plans = space()
    found = exact_search(model, plans.chunks(500), top=3)
    assert found.discarded["bound"] > found.enumerated / 2
    assert found.evaluated == model.priced


def test_pricing_every_plan_finds_the_same():
    """Without bounds the outcome is the same, and every plan is handed on once."""
    model = Scores(5, 500, available=250)
    plans = space()
    seen = []
    whole = exact_search(model, plans.chunks(400), top=10, every=seen.append)
    quick = exact_search(model, plans.chunks(400), top=10)
    assert listed(whole.best.table) == listed(quick.best.table)
    assert listed(whole.front.table) == listed(quick.front.table)
    assert whole.discarded["bound"] == 0
    assert sum(len(verdict.table) for verdict in seen) == whole.enumerated
    assert sum(int(verdict.fits.sum()) for verdict in seen) == whole.evaluated
    for verdict in seen:
        assert (np.isnan(verdict.time_s) == ~verdict.fits).all()
        assert (verdict.fits == (verdict.memory_bytes <= 250)).all()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    tp=st.sampled_from([(1,), (2, 4), (1, 2, 4, 8)]),
    zero=st.sampled_from([(0,), (1, 3)]),
)
def test_a_superset_is_never_worse(seed, tp, zero):
    """A narrowed space, and compact within full, never hold a faster plan than the whole."""
    model = Scores(seed, 10_007, available=8_000)
    whole = exact_search(model, space().chunks(), top=1)
    for part in (space(Narrowing({"tp": tp, "zero": zero})), space(name="compact")):
        found = exact_search(model, part.chunks(), top=1)
        assert found.enumerated < whole.enumerated
        if found.best is not None:
            assert found.best.time_s[0] >= whole.best.time_s[0]


def test_headroom_tightens_memory():
    """Headroom is taken off what a device offers."""
    model = Scores(3, 1_000, available=600)
    roomy = exact_search(model, space().chunks(), top=5)
    tight = exact_search(model, space().chunks(), top=5, headroom_bytes=300)
    exact = exact_search(Scores(3, 1_000, available=300), space().chunks(), top=5)
    assert tight.discarded["memory"] > roomy.discarded["memory"]
    assert listed(tight.best.table) == listed(exact.best.table)


def test_the_least_demanding_plan_is_named_where_nothing_fits():
    """The smallest peak of the space, its plan and its stage are kept for the error."""
    model = Scores(3, 10_007, available=0.5)
    plans = space()
    found = exact_search(model, plans.chunks(100), top=5)
    peaks = np.concatenate([model.memory(table).peak_bytes for table in plans.chunks()])
    assert found.best is None
    assert found.discarded == {"memory": found.enumerated, "bound": 0}
    assert found.least.peak_bytes == peaks.min()
    assert model.memory(found.least.table).peak_bytes[0] == peaks.min()
    assert found.least.stage == found.least.table.column("pp")[0] - 1


def test_an_empty_space_finds_nothing():
    """No plans: nothing found, nothing counted."""
    found = exact_search(Scores(3, 10, 5), space(Narrowing({"tp": (3,)})).chunks(), top=5)
    assert (found.best, found.front, found.least, found.enumerated) == (None, None, None, 0)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=40))
def test_the_front_is_what_no_row_beats(points):
    """A row is on the front if and only if no other is at least as good in both and better in
    one.
    """
    time = np.array([float(t) for t, _ in points])
    memory = np.array([float(m) for _, m in points])
    rank = np.arange(len(points))
    kept = set(front_rows(time, memory, rank).tolist())
    for row in range(len(points)):
        beaten = (
            (time <= time[row]) & (memory <= memory[row])
            & ((time < time[row]) | (memory < memory[row]))
        ).any()  # fmt: skip
        first = not ((time == time[row]) & (memory == memory[row]) & (rank < row)).any()
        assert (row in kept) == (first and not beaten)


def test_equal_plans_rank_in_canonical_order():
    """Merged in any order, equal times keep the plan that comes first by its axes."""
    table = next(iter(space().chunks()))
    rank = canonical_rank(table)
    rows = np.argsort(rank)[:50]
    flat = Priced(table.take(rows), np.ones(50), np.ones(50))
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(50)
        kept = Incumbents(3)
        for part in np.array_split(order, 7):
            kept.merge(flat.take(part))
        assert canonical_rank(kept.best.table).tolist() == sorted(rank.tolist())[:3]
        assert canonical_rank(kept.front.table).tolist() == [rank.min()]


def test_canonical_rank_orders_like_the_axes():
    """Codes read as one number order plans as their axes do, first axis first."""
    table = next(iter(space().chunks()))
    rank = canonical_rank(table)
    by_axes = sorted(range(len(table)), key=listed(table).__getitem__)
    assert (np.diff(rank[by_axes]) > 0).all()


def real(model, name, chips, batch, space_name, seq_length=256):
    """The step model, and a space, of a small job on a catalogued cluster."""
    cluster = hwmodels.load_cluster(name, num_chips=chips)
    stack = calibrated_stack(None, cluster.chip)
    workload = dse.make_workload(model, seq_length)
    step = dse.StepModel(workload, hwmodels.HardwareTable.of([cluster]), stack)
    return step, PlanSpace(named_space(space_name), Job(model, seq_length, chips), batch)


def moe():
    return dense().model_copy(update={"experts": 4, "topk": 2, "expert_ffn": 1024})


@pytest.mark.parametrize("space_name", ["compact", "full"])
@pytest.mark.parametrize("model", [dense(), moe()], ids=["dense", "moe"])
@pytest.mark.parametrize("cluster", ["dgx-h100", "dgx-a100-80gb"])
def test_bounds_of_the_step_model_never_drop_a_winner(space_name, model, cluster):
    """Best plans and front of the real evaluator are those of every plan priced."""
    step, plans = real(model, cluster, 16, 16, space_name)
    quick = exact_search(step, plans.chunks(700), top=20)
    verdicts = []
    exact_search(step, plans.chunks(700), top=20, every=verdicts.append)
    rows = sorted(
        (time_s, plan, memory_bytes)
        for verdict in verdicts
        for time_s, plan, memory_bytes, fits in zip(
            verdict.time_s.tolist(),
            listed(verdict.table),
            verdict.memory_bytes.tolist(),
            verdict.fits.tolist(),
            strict=True,
        )
        if fits
    )
    assert quick.best.time_s.tolist() == [time_s for time_s, _, _ in rows[:20]]
    assert listed(quick.best.table) == [plan for _, plan, _ in rows[:20]]
    front = []
    for time_s, plan, memory_bytes in sorted(rows, key=lambda row: (row[2], row[0], row[1])):
        if not front or time_s < front[-1][0]:
            front.append((time_s, plan, memory_bytes))
    assert listed(quick.front.table) == [plan for _, plan, _ in front]
    assert quick.enumerated == sum(len(verdict.table) for verdict in verdicts)


@pytest.mark.parametrize("model", [dense(), moe()], ids=["dense", "moe"])
def test_the_bound_is_one(model):
    """No plan of a space is priced below its bound."""
    step, plans = real(model, "dgx-h100", 16, 16, "full")
    for table in plans.chunks():
        bound_s, time_s = step.bound_s(table), step.evaluate(table).step_time_s
        assert (bound_s <= time_s * (1 + 1e-12)).all()
        assert (bound_s > 0).all()


def test_the_reported_plan_is_the_one_that_was_searched():
    """Each report's time and peak memory are those that the search ranked it by."""
    result = search.search_plans(
        moe(), "dgx-h100", chips=16, global_batch_size=16, seq_length=256, top=8
    )
    step, plans = real(moe(), "dgx-h100", 16, 16, "full")
    found = exact_search(step, plans.chunks(), top=8)
    for row, report in enumerate(result.best):
        assert report.step_time_s == pytest.approx(found.best.time_s[row], rel=1e-12)
        assert report.peak_memory_bytes == pytest.approx(found.best.memory_bytes[row], rel=1e-12)
        assert report.plan == found.best.table.plan(row)
        assert report.fits


def test_python_door():
    """best_plans as the contract writes it: plan, step time, ledger; narrowing never helps."""
    cluster = hwmodels.load_cluster("dgx-h100", num_chips=16)
    job = {"global_batch_size": 32, "seq_length": 256}
    best = search.best_plans(dense(), cluster, **job)[0]
    assert best.plan.global_batch_size == 32
    assert best.step_time_s > 0
    for narrowed in ({"fix": {"pp": 2}}, {"allow": {"zero": [2, 3]}}, {"space": "compact"}):
        result = search.search_plans(dense(), cluster, **job, **narrowed)
        assert result.best[0].step_time_s >= best.step_time_s
        assert result.enumerated == result.evaluated + sum(result.discarded.values())
        for axis, values in narrowed.get("allow", {}).items():
            assert {getattr(report.plan, axis) for report in result.best} <= set(values)


def test_the_python_door_refuses_like_the_command_line():
    """Impossible requests are errors of the user, empty spaces are infeasible."""
    job = {"chips": 16, "global_batch_size": 32, "seq_length": 256}
    for wrong in ({"top": 0}, {"space": "tiny"}, {"fix": {"tpp": 1}}, {"global_batch_size": 0}):
        with pytest.raises(ConfigError):
            search.search_plans(dense(), "dgx-h100", **{**job, **wrong})
    with pytest.raises(InfeasibleError, match="no plan"):
        search.search_plans(dense(), "dgx-h100", **job, fix={"tp": 5})
    with pytest.raises(InfeasibleError) as caught:
        search.search_plans(dense(), "dgx-h100", **job, headroom_bytes=1e12)
    assert caught.value.available_bytes_per_device < 0
    assert caught.value.short_by_bytes > 0


def test_a_search_is_reproducible():
    """Two searches give the same result but for the time they took."""
    job = {"chips": 16, "global_batch_size": 16, "seq_length": 256}
    first = search.search_plans(dense(), "dgx-h100", **job).model_dump()
    second = search.search_plans(dense(), "dgx-h100", **job).model_dump()
    del first["elapsed_s"], second["elapsed_s"]
    assert first == second
