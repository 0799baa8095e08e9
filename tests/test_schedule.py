"""Closed forms of pipeline schedules against an event simulation written here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.plan import SCHEDULES
from dse.schedule import FIRST, LAST, MIDDLE, Stages, in_flight, pipe_time, schedule_table

pytestmark = pytest.mark.fast

Pass = tuple[str, int, int]
"""`F` or `B`, micro-batch, chunk of the device."""


# The replay ------------------------------------------------------------------------------------


def order(schedule: str, p: int, v: int, m: int, rank: int) -> list[Pass]:
    """What a rank runs, in its static order."""
    if schedule == "gpipe":
        return [("F", i, 0) for i in range(m)] + [("B", i, 0) for i in range(m)]
    forwards: list[Pass]
    backwards: list[Pass]
    if schedule == "1f1b":
        warm_up = min(p - rank - 1, m)
        forwards = [("F", i, 0) for i in range(m)]
        backwards = [("B", i, 0) for i in range(m)]
    else:
        # Groups of p micro-batches go through one chunk after the other, backward in reverse.
        warm_up = min(2 * (p - rank - 1) + (v - 1) * p, m * v)
        steps = [(k // (p * v) * p + k % p, k % (p * v) // p) for k in range(m * v)]
        forwards = [("F", i, chunk) for i, chunk in steps]
        backwards = [("B", i, v - 1 - chunk) for i, chunk in steps]
    found = forwards[:warm_up]
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        found += [forward, backward]
    return found + backwards[len(forwards) - warm_up :]


def replay(
    schedule: str, v: int, m: int, f: Sequence[float], b: Sequence[float]
) -> tuple[float, list[float]]:
    """Seconds until the last pass ends, and each rank's peak of forwards without backward.

    `f` and `b` are a rank's whole passes; a chunk takes one v-th. Messages take no time.
    """
    p = len(f)
    queues = [order(schedule, p, v, m, rank) for rank in range(p)]
    done: dict[tuple[int, Pass], float] = {}
    clock = [0.0] * p
    at = [0] * p

    def needs(rank: int, run: Pass) -> tuple[int, Pass] | None:
        kind, i, chunk = run
        if kind == "F":
            if rank > 0:
                return rank - 1, ("F", i, chunk)
            return (p - 1, ("F", i, chunk - 1)) if chunk > 0 else None
        if rank < p - 1:
            return rank + 1, ("B", i, chunk)
        return (0, ("B", i, chunk + 1)) if chunk < v - 1 else (rank, ("F", i, chunk))

    left = sum(len(queue) for queue in queues)
    while left:
        ran = left
        for rank in range(p):
            while at[rank] < len(queues[rank]):
                run = queues[rank][at[rank]]
                before = needs(rank, run)
                if before is not None and before not in done:
                    break
                ready = 0.0 if before is None else done[before]
                spent = (f[rank] if run[0] == "F" else b[rank]) / v
                clock[rank] = max(clock[rank], ready) + spent
                done[rank, run] = clock[rank]
                at[rank] += 1
                left -= 1
        assert left < ran, "the order deadlocks"
    peaks = []
    for queue in queues:
        alive, peak = 0, 0
        for kind, _, _ in queue:
            alive += 1 if kind == "F" else -1
            peak = max(peak, alive)
        peaks.append(peak / v)
    return max(clock), peaks


# The closed forms ------------------------------------------------------------------------------


def closed(
    schedule: str, v: int, m: int, f: Sequence[float], b: Sequence[float]
) -> tuple[float, int]:
    """Seconds and critical kind of stage; the middle ranks must be alike."""
    p = len(f)
    assert len(set(f[1:-1])) <= 1
    assert len(set(b[1:-1])) <= 1
    middle = min(1, p - 1)

    def row(value: float) -> np.ndarray:
        return np.array([[float(value)]])

    stages = Stages(row(f[0]), row(b[0]), row(f[middle]), row(b[middle]), row(f[-1]), row(b[-1]))
    columns = (np.array([x]) for x in (SCHEDULES.index(schedule), p, v, m))
    found = pipe_time(*columns, stages)
    return float(found.seconds[0, 0]), int(found.critical[0, 0])


def alive(schedule: str, v: int, m: int, p: int) -> list[float]:
    columns = [np.array([x]) for x in (SCHEDULES.index(schedule), p, v, m)]
    return [float(in_flight(*columns, rank)[0]) for rank in range(p)]


# The worked example of the sheet: p = 4, m = 8, f = 1, b = 2.
@pytest.mark.parametrize(
    ("schedule", "v", "seconds", "held"),
    [
        ("gpipe", 1, 33, [8, 8, 8, 8]),
        ("1f1b", 1, 33, [4, 3, 2, 1]),
        ("interleaved", 2, 28.5, [5.5, 4.5, 3.5, 2.5]),
    ],
)
def test_worked_example(schedule: str, v: int, seconds: float, held: list[float]) -> None:
    """Ideal 24; the bubbles and what the ranks hold by schedule, in closed form and replayed."""
    f, b = [1.0] * 4, [2.0] * 4
    assert closed(schedule, v, 8, f, b) == (seconds, FIRST)
    assert alive(schedule, v, 8, 4) == held
    assert replay(schedule, v, 8, f, b) == (seconds, held)


def test_worked_example_with_a_heavier_end() -> None:
    """f = 1, 1, 1, 1.5 and b = 2f: 45, fixed by the last stage."""
    f = [1.0, 1.0, 1.0, 1.5]
    b = [2 * seconds for seconds in f]
    assert closed("1f1b", 1, 8, f, b) == (45, LAST)
    assert replay("1f1b", 1, 8, f, b)[0] == 45


def test_worked_example_with_a_heavier_middle() -> None:
    """f = 1, 2, 1 and b = 2, 3, 2 with m = 8. The middle stage waits for the first forward (1)
    and, after its own second forward, for the last stage (3 - 2); the first ends with a backward
    (2).
    """
    f, b = [1.0, 2.0, 1.0], [2.0, 3.0, 2.0]
    assert closed("1f1b", 1, 8, f, b) == (1 + 8 * 5 + 1 + 2, MIDDLE)
    assert replay("1f1b", 1, 8, f, b)[0] == 44


seconds = st.floats(0.25, 4.0)
depths = st.integers(2, 6)


@given(
    schedule=st.sampled_from(SCHEDULES),
    p=depths,
    groups=st.integers(1, 4),
    v=st.integers(2, 3),
    f=seconds,
    b=seconds,
)
def test_equal_stages_are_exact(
    schedule: str, p: int, groups: int, v: int, f: float, b: float
) -> None:
    """With equal stages and p dividing m every schedule's formula is its replay."""
    v = v if schedule == "interleaved" else 1
    m = groups * p
    found, _ = closed(schedule, v, m, [f] * p, [b] * p)
    expected, _ = replay(schedule, v, m, [f] * p, [b] * p)
    assert found == pytest.approx(expected, rel=1e-12)


@given(p=depths, m=st.integers(1, 20), f=seconds, b=seconds)
def test_equal_stages_of_any_number_of_micro_batches(p: int, m: int, f: float, b: float) -> None:
    """Without interleaving m need not be a multiple of p, nor reach it."""
    for schedule in ("1f1b", "gpipe"):
        found, _ = closed(schedule, 1, m, [f] * p, [b] * p)
        assert found == pytest.approx(replay(schedule, 1, m, [f] * p, [b] * p)[0], rel=1e-12)
        assert found == pytest.approx((m + p - 1) * (f + b), rel=1e-12)


@given(p=depths, extra=st.integers(0, 12), middle=seconds, first=seconds, last=seconds)
def test_heavier_ends_are_exact(
    p: int, extra: int, middle: float, first: float, last: float
) -> None:
    """1F1B with b = 2f where only the ends are heavier, as embedding and head make them."""
    f = [middle + first, *[middle] * (p - 2), middle + last]
    b = [2 * one for one in f]
    found, _ = closed("1f1b", 1, p + extra, f, b)
    assert found == pytest.approx(replay("1f1b", 1, p + extra, f, b)[0], rel=1e-12)


unequal = st.tuples(st.floats(0.5, 2.0), st.floats(1.5, 2.5))  # f, b over f


@given(p=depths, extra=st.integers(0, 18), first=unequal, middle=unequal, last=unequal)
def test_unequal_stages_are_bracketed(
    p: int,
    extra: int,
    first: tuple[float, float],
    middle: tuple[float, float],
    last: tuple[float, float],
) -> None:
    """1F1B's formula is the lower end of a bracket: never above the replay nor far below it, and
    the upper end sum F + (m-1) max F is never below it.
    """
    kinds = [first, *[middle] * (p - 2), last]
    f, b = [kind[0] for kind in kinds], [kind[0] * kind[1] for kind in kinds]
    m = p + extra
    low, _ = closed("1f1b", 1, m, f, b)
    exact, _ = replay("1f1b", 1, m, f, b)
    whole = [one + other for one, other in zip(f, b, strict=True)]
    assert low <= exact * (1 + 1e-12)
    assert low >= 0.9 * exact
    assert exact <= (sum(whole) + (m - 1) * max(whole)) * (1 + 1e-12)


@given(p=depths, m=st.integers(1, 20), first=unequal, middle=unequal, last=unequal)
def test_a_flush_is_exact_for_unequal_stages(
    p: int,
    m: int,
    first: tuple[float, float],
    middle: tuple[float, float],
    last: tuple[float, float],
) -> None:
    """GPipe: sum f + (m-1) max f, then the same of b, whatever the stages."""
    kinds = [first, *[middle] * (p - 2), last]
    f, b = [kind[0] for kind in kinds], [kind[0] * kind[1] for kind in kinds]
    found, _ = closed("gpipe", 1, m, f, b)
    assert found == pytest.approx(replay("gpipe", 1, m, f, b)[0], rel=1e-12)


@given(
    schedule=st.sampled_from(SCHEDULES), p=depths, groups=st.integers(1, 4), v=st.integers(2, 3)
)
def test_micro_batches_alive_are_those_of_the_replay(
    schedule: str, p: int, groups: int, v: int
) -> None:
    """On every rank, in units of a device's layers."""
    v = v if schedule == "interleaved" else 1
    _, held = replay(schedule, v, groups * p, [1.0] * p, [2.0] * p)
    assert alive(schedule, v, groups * p, p) == held


@given(p=depths, m=st.integers(1, 12))
def test_fewer_micro_batches_than_stages(p: int, m: int) -> None:
    """1F1B holds no more than there are."""
    _, held = replay("1f1b", 1, m, [1.0] * p, [2.0] * p)
    assert alive("1f1b", 1, m, p) == held


@given(schedule=st.sampled_from(SCHEDULES), p=depths, v=st.integers(2, 4), f=seconds, b=seconds)
def test_many_micro_batches_hide_the_bubble(
    schedule: str, p: int, v: int, f: float, b: float
) -> None:
    """The bubble is (p-1)/(v m) of the ideal: it vanishes as m grows."""
    v = v if schedule == "interleaved" else 1
    for m in (p, 10 * p, 10_000 * p):
        found, _ = closed(schedule, v, m, [f] * p, [b] * p)
        assert found / (m * (f + b)) - 1 == pytest.approx((p - 1) / (v * m), rel=1e-6)


@given(m=st.integers(1, 1000), f=seconds, b=seconds, schedule=st.sampled_from(["1f1b", "gpipe"]))
def test_one_stage_has_no_bubble(m: int, f: float, b: float, schedule: str) -> None:
    """Pp = 1 costs exactly m passes; accumulation holds one micro-batch."""
    assert closed(schedule, 1, m, [f], [b]) == (m * (f + b), FIRST)
    assert alive("1f1b", 1, m, 1) == [1]


def test_a_tie_goes_to_the_stage_with_more_work() -> None:
    """With m = p = 2 both stages' formulas are F_0 + 2 F_1, up to rounding: the heavy one names
    the ledger, wherever it lies.
    """
    for scale in np.linspace(0.1, 3.0, 50):
        light, heavy = 0.1 * scale, 0.7 * scale
        assert closed("1f1b", 1, 2, [light, heavy], [2 * light, 2 * heavy])[1] == LAST
        assert closed("1f1b", 1, 2, [heavy, light], [2 * heavy, 2 * light])[1] == FIRST


def test_a_table_mixes_schedules() -> None:
    """Plans of all schedules in one table cost what each costs alone."""
    plans = [("1f1b", 4, 1, 8), ("gpipe", 4, 1, 8), ("interleaved", 4, 2, 8),
             ("1f1b", 1, 1, 8), ("1f1b", 4, 1, 2), ("1f1b", 2, 1, 8)]  # fmt: skip
    columns = [
        np.array([SCHEDULES.index(plan[0]) for plan in plans]),
        *(np.array([plan[i] for plan in plans]) for i in (1, 2, 3)),
    ]
    row = np.ones((1, len(plans)))
    found = pipe_time(*columns, Stages(row, 2 * row, row, 2 * row, row, 2 * row)).seconds[0]
    for (schedule, p, v, m), value in zip(plans, found, strict=True):
        assert value == closed(schedule, v, m, [1.0] * p, [2.0] * p)[0]


def test_schedule_table() -> None:
    """Micro-batches follow from the batch; GPipe's last stage keeps every micro-batch's logits."""
    keys = {
        "pp": [4, 4, 1],
        "vpp": [1, 1, 1],
        "schedule": [SCHEDULES.index(name) for name in ("1f1b", "gpipe", "1f1b")],
        "dp": [2, 2, 4],
        "micro_batch_size": [2, 2, 1],
        "global_batch_size": [32, 32, 32],
        "cp": [1, 2, 1],
        "zero": [0, 1, 3],
    }
    table = schedule_table({axis: np.array(column) for axis, column in keys.items()})
    assert table.num_microbatches.tolist() == [8, 8, 8]
    assert table.at_head.tolist() == [1, 8, 1]
    assert table.alive.tolist() == [[4, 8, 1], [3, 8, 1], [1, 8, 1]]
