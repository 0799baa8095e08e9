"""Where designs are judged: in this process, or in a pool of them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import numpy as np

from hwmodels.table import IntArray
from search.judge import Judge, Verdicts
from search.study import Evaluator
from search.study_space import StudySpace

POOLED = 256
"""Most designs that one task of a pool judges."""

_judge_of_process: Judge | None = None


def _start_process(space: StudySpace, seed: int) -> None:
    import signal

    global _judge_of_process
    # Ctrl-C reaches the whole group; the parent finishes the batch.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _judge_of_process = Judge(space, seed=seed)


def _judge_in_process(index: IntArray) -> Verdicts:
    if _judge_of_process is None:
        raise RuntimeError("the process has no judge")
    return _judge_of_process(index)


def shape_key(space: StudySpace, index: IntArray) -> IntArray:
    """(H,) equal for designs that can stand in one hardware table."""
    at = space.positions(index)
    key = np.zeros(len(index), dtype=np.int64)
    for place, axis in enumerate(space.axes):
        if axis.name in ("chips", "topology"):
            key = key * len(axis) + at[:, place]
    return key


@contextmanager
def evaluator(space: StudySpace, *, seed: int, workers: int) -> Iterator[Evaluator]:
    """A judge in this process, or a pool of them; both say the same."""
    if workers <= 1:
        yield Judge(space, seed=seed)
        return
    from multiprocessing import get_context

    with ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=_start_process, initargs=(space, seed)
    ) as pool:

        def judge(index: IntArray) -> Verdicts:
            # Designs that share a hardware table stay together; their order comes back after.
            order = np.argsort(shape_key(space, index), kind="stable")
            count = max(min(workers, len(index)), -(-len(index) // POOLED))
            pieces = np.array_split(index[order], count)
            joined = Verdicts.joined(list(pool.map(_judge_in_process, pieces)))
            return joined.take(np.argsort(order))

        yield judge
