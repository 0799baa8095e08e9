"""Which hardware trains these models best: the door to a hardware study.

A study looks at designs, each at its exact best plan of the compact space, then solves its front
again over the full plan space, sets it beside real chips at their own best plans, and says how
likely each is to be better, constants and model error included.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwmodels.errors import ConfigError, InfeasibleError
from hwmodels.version import __version__
from search.executors import evaluator
from search.front import Front, solve_front
from search.judge import Judge, Verdicts
from search.limits import refuse_contradictions
from search.objectives import DIRECTIONS, front_rows, scores
from search.objectives import UNITS as OBJECTIVE_UNITS
from search.result import HistoryPoint, Objective, SearchResult
from search.rivals import rivals_of
from search.samplers import choose
from search.space_file import load_space
from search.storage import Ledger
from search.study import Keeper, NotKept, Outcome, Progress, StudyLoop, values_of
from search.study_space import StudySpace

LEAST_RESOLVED = 16
"""Designs that are solved over the full plan space: those of the front, and of the next fronts
behind it until there are so many, since the full space may change the order."""
MOST_RESOLVED = 64
"""Designs of a front that are; the rest keep their compact plan."""


def explore(
    space: StudySpace | str | Path,
    *,
    seed: int = 0,
    trials: int | None = None,
    sampler: str | None = None,
    study: str | None = None,
    storage: str | None = None,
    workers: int = 1,
    restart: bool = False,
    full_plans: bool = True,
    progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> SearchResult:
    """Search a space of hardware designs.

    Args:
        space: A space, or the path of its YAML file.
        seed: Of every draw: samplers, silicon constants, comparisons.
        trials: Designs to look at; the file's number, or the rule's, if None.
        sampler: One of `search.samplers.SAMPLERS`; by rule if None.
        study: Name of the study; the file's if None.
        storage: A journal's path or a database's URL, to keep trials in and resume from; nothing
            is kept if None.
        workers: Processes that judge designs. Results do not depend on it.
        restart: Forget what the storage holds of this study.
        full_plans: Whether to solve the front again over the full plan space.
        progress: Told after each batch.
        stop: Asked before each batch; True ends the study there.

    Raises:
        ConfigError: A malformed space, contradictory caps, a storage that holds something else.
        InfeasibleError: No design that was looked at meets every constraint.
    """
    known = space if isinstance(space, StudySpace) else load_space(space)
    judge = Judge(known, seed=seed)
    refuse_contradictions(judge)
    choice = choose(known, trials, sampler)
    name = study or Path(known.file).stem
    keeper: Keeper = NotKept()
    if storage is not None:
        keeper = Ledger(
            storage,
            name,
            [DIRECTIONS[objective] for objective in known.objectives],
            {"space": known.canonical(), "seed": seed},
            restart=restart,
        )
    try:
        with evaluator(known, seed=seed, workers=workers) as evaluate:
            loop = StudyLoop(known, choice, keeper, evaluate, seed=seed)
            outcome = loop.run(progress, stop)
    finally:
        if isinstance(keeper, Ledger):
            keeper.close()
    front = _front(judge, outcome, full_plans=full_plans)
    compared = rivals_of(judge, front, seed=seed)
    warnings = [*compared.warnings]
    if full_plans and len(front.rows) > MOST_RESOLVED:
        warnings.append(
            f"of {len(front.rows)} designs of the front, {MOST_RESOLVED} were solved in full"
        )
    if outcome.interrupted:
        warnings.append("interrupted: the budget was not spent")
    verdicts = outcome.verdicts
    return SearchResult(
        version=__version__,
        calibration=front.calibration,
        inputs_sha256=known.sha256,
        seed=seed,
        warnings=tuple(warnings),
        study=name,
        storage=storage,
        space_size=known.size,
        aggregate=known.aggregate if len(known.jobs) > 1 else None,
        objectives=tuple(
            Objective(name=o, unit=OBJECTIVE_UNITS[o], direction=DIRECTIONS[o])
            for o in known.objectives
        ),
        plan_space="compact, the front in full" if full_plans else "compact",
        designs_evaluated=outcome.trials,
        unique=len(verdicts),
        feasible=int(verdicts.feasible.sum()),
        infeasible=broken(verdicts),
        sampler=choice.name,
        why_sampler=choice.why,
        elapsed_s=outcome.elapsed_s,
        evaluator_s=outcome.evaluator_s,
        judged=outcome.judged,
        pairs_priced=verdicts.pairs,
        interrupted=outcome.interrupted,
        best=compared.front[0],
        front=compared.front,
        compared=compared.rivals,
        elasticities=compared.elasticities,
        history=tuple(
            HistoryPoint(designs=designs, value=value) for designs, value in outcome.history
        ),
    ).with_designs(known, verdicts, values_of(known, verdicts))


def broken(verdicts: Verdicts) -> dict[str, int]:
    """Constraint to how many designs break it, each counted under the first that it breaks."""
    left = np.ones(len(verdicts), dtype=bool)
    counts: dict[str, int] = {}
    for name, column in verdicts.excess.items():
        hit = left & (column > 0)
        if hit.any():
            counts[name] = int(hit.sum())
        left &= ~hit
    return counts


def fronts_of(judge: Judge, verdicts: Verdicts, least: int) -> NDArray[np.intp]:
    """Rows of the feasible designs that no other beats in one objective without losing in
    another, the best of the first objective first; then those of the front behind it, and so on
    until there are `least`."""
    space = judge.space
    left = np.flatnonzero(verdicts.feasible)
    values = values_of(space, verdicts)
    scored = np.stack([scores(o, values[:, i]) for i, o in enumerate(space.objectives)], axis=1)
    found: list[NDArray[np.intp]] = []
    while len(left) and sum(map(len, found)) < least:
        front = left[front_rows(scored[left])]
        found.append(front if not found else front[: least - sum(map(len, found))])
        left = np.setdiff1d(left, front, assume_unique=True)
    return np.concatenate(found)


def _front(judge: Judge, outcome: Outcome, *, full_plans: bool) -> Front:
    verdicts = outcome.verdicts
    if not len(verdicts):
        raise ConfigError("no design was looked at", field="--trials")
    if not verdicts.feasible.any():
        worst = broken(verdicts)
        listed = ", ".join(f"{name} ({count})" for name, count in worst.items())
        raise InfeasibleError(
            f"none of {len(verdicts)} designs meets every constraint; broken first: {listed}"
        )
    rows = fronts_of(judge, verdicts, LEAST_RESOLVED if full_plans else 1)
    return solve_front(judge, verdicts, rows, most=MOST_RESOLVED if full_plans else 0)
