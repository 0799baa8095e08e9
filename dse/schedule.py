"""Pipeline schedules in closed form: seconds of a step's passes, micro-batches alive on a rank.

A stage is one of three kinds: the first (with the embedding), the middle ones (all alike), the
last (with head and loss). F = f + b is a micro-batch's forward and backward on a stage.

    gpipe         sum f + (m-1) max f + sum b + (m-1) max b            exact for a static flush
    1f1b, m >= p  max_r [ sum_{q<r} F_q + m F_r + max(0, post_r - w_r f_r) + max(0, post_r - w_r
                  b_r) ] w_r = p-r-1, post_r = sum_{q>r} F_q; exact where only the ends differ and
                  b = 2f
    1f1b, m < p   gpipe's formula: no steady phase is ever reached
    interleaved   m max F + (p-1)/v mean F                             exact for equal stages

The expression under max_r is convex in r over the middle stages, so its ends r = 1 and r = p-2
suffice. Domain: messages between stages are part of f and b. Outside equal stages interleaving is
a guide and 1f1b the lower end of a bracket (sheet, sections 5.1 and 5.2).

Shapes broadcast: (H, P) seconds, (P,) integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dse.plan import SCHEDULES, IntArray
from hwmodels.table import FloatArray

GPIPE = SCHEDULES.index("gpipe")
INTERLEAVED = SCHEDULES.index("interleaved")
FIRST, MIDDLE, LAST = 0, 1, 2

TIE = 1e-9
"""Stages whose formulas agree to this share fix the time together."""

Numbers = FloatArray | IntArray


@dataclass(frozen=True, slots=True)
class Stages:
    """Seconds of one micro-batch by kind of stage, (H, P); with pp = 1 the first holds all."""

    first_f: FloatArray
    first_b: FloatArray
    middle_f: FloatArray
    middle_b: FloatArray
    last_f: FloatArray
    last_b: FloatArray


@dataclass(frozen=True, slots=True)
class PipeTime:
    """Seconds of all passes of a step, and the kind of stage that fixes them, each (H, P)."""

    seconds: FloatArray
    critical: IntArray


def pipe_time(
    schedule: Numbers, pp: Numbers, vpp: Numbers, num_microbatches: Numbers, stages: Stages
) -> PipeTime:
    """Seconds from the first forward to the last backward.

    Args:
        schedule: (P,) positions in `SCHEDULES`.
        pp: (P,) stages.
        vpp: (P,) chunks a device.
        num_microbatches: (P,) micro-batches a step.
        stages: Seconds of one micro-batch.
    """
    p, m = pp, num_microbatches
    one_stage = pp == 1
    deep = pp > 2
    first, middle, last = (
        stages.first_f + stages.first_b,
        stages.middle_f + stages.middle_b,
        stages.last_f + stages.last_b,
    )
    best_s = m * first
    critical = np.zeros(best_s.shape, dtype=np.int64)
    if np.all(one_stage):
        return PipeTime(best_s, critical)

    between = np.maximum(p - 2, 0.0)
    post = between * middle + last
    waiting = p - 1
    steady = best_s + np.maximum(0.0, post - waiting * stages.first_f)
    steady = steady + np.maximum(0.0, post - waiting * stages.first_b)
    tail = first + between * middle + m * last
    critical = np.where(tail * _preference(last, first) > steady, LAST, FIRST)
    steady = np.maximum(steady, tail)
    if np.any(deep):
        rest = np.maximum(p - 3, 0.0)
        after_first = rest * middle + last
        near = first + m * middle
        near = near + np.maximum(0.0, after_first - between * stages.middle_f)
        near = near + np.maximum(0.0, after_first - between * stages.middle_b)
        far = first + rest * middle + m * middle
        far = far + np.maximum(0.0, last - stages.middle_f)
        far = far + np.maximum(0.0, last - stages.middle_b)
        inner = np.where(deep, np.maximum(near, far), 0.0)
        rival = np.where(critical == LAST, last, first)
        critical = np.where(inner * _preference(middle, rival) > steady, MIDDLE, critical)
        steady = np.maximum(steady, inner)

    flush = (schedule == GPIPE) | ((schedule != INTERLEAVED) & (num_microbatches < pp))
    woven = schedule == INTERLEAVED
    if np.any(flush) or np.any(woven):
        slowest = np.maximum(np.maximum(first, last), np.where(deep, middle, 0.0))
        heaviest = np.where(first >= slowest, FIRST, np.where(last >= slowest, LAST, MIDDLE))
        critical = np.where(flush | woven, heaviest, critical)
        total = first + between * middle + last
        max_f = np.maximum(
            np.maximum(stages.first_f, stages.last_f), np.where(deep, stages.middle_f, 0.0)
        )
        max_b = np.maximum(
            np.maximum(stages.first_b, stages.last_b), np.where(deep, stages.middle_b, 0.0)
        )
        steady = np.where(flush, total + (m - 1) * (max_f + max_b), steady)
        steady = np.where(woven, m * slowest + (p - 1) / vpp * (total / p), steady)
    return PipeTime(np.where(one_stage, best_s, steady), np.where(one_stage, FIRST, critical))


def _preference(own: FloatArray, rival: FloatArray) -> FloatArray:
    """Decides ties, which rounding must not: the stage with more work fixes the time."""
    return np.where(own > rival, 1.0 + TIE, 1.0 - TIE)


SCHEDULE_AXES = (
    "pp",
    "vpp",
    "schedule",
    "dp",
    "micro_batch_size",
    "global_batch_size",
    "cp",
    "zero",
)


@dataclass(frozen=True, slots=True)
class ScheduleTable:
    """What a plan's schedule fixes, over K distinct combinations of `SCHEDULE_AXES`.

    `alive` is (3, K): micro-batches held by rank 0, rank 1 and the last; `at_head` those whose
    logits are held; all in units of a device's layers. The others are (K,).
    """

    pp: FloatArray
    vpp: FloatArray
    cp: FloatArray
    schedule: FloatArray
    zero: FloatArray
    num_microbatches: FloatArray
    alive: FloatArray
    at_head: FloatArray


def schedule_table(keys: Mapping[str, IntArray]) -> ScheduleTable:
    """Work out micro-batches and how many of them are alive where."""
    pp, vpp, schedule = keys["pp"], keys["vpp"], keys["schedule"]
    m = keys["global_batch_size"] // (keys["micro_batch_size"] * keys["dp"])
    ranks = (np.zeros_like(pp), np.minimum(1, pp - 1), pp - 1)
    return ScheduleTable(
        pp=pp.astype(float),
        vpp=vpp.astype(float),
        cp=keys["cp"].astype(float),
        schedule=schedule.astype(float),
        zero=keys["zero"].astype(float),
        num_microbatches=m.astype(float),
        alive=np.stack([in_flight(schedule, pp, vpp, m, rank) for rank in ranks]),
        at_head=np.where(schedule == GPIPE, m, 1).astype(float),
    )


def in_flight(
    schedule: IntArray,
    pp: IntArray,
    vpp: IntArray,
    num_microbatches: IntArray,
    rank: IntArray | int,
) -> FloatArray:
    """(P,) peak micro-batches whose activations a rank holds, in units of a device's layers.

    1f1b min(p-r, m); gpipe m; interleaved min(m v, 2(p-r-1) + (v-1) p + 1) / v (sheet 3.4).
    """
    plain = np.minimum(pp - rank, num_microbatches)
    chunks = np.minimum(num_microbatches * vpp, 2 * (pp - rank - 1) + (vpp - 1) * pp + 1)
    alive = np.where(schedule == INTERLEAVED, chunks / vpp, plain)
    held: FloatArray = np.where(schedule == GPIPE, num_microbatches, alive).astype(float)
    return held
