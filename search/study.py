"""The loop of a study: propose a batch of designs, judge those not met before, keep, repeat.

One trial is one design at its exact best plan. Optuna's study lives in memory and is rebuilt from
what was kept; a design that a sampler proposes again is told what it got before, not judged again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hwmodels.accelerator.known import load_known_silicon
from hwmodels.accelerator.template import KEYS, WHOLE, Systolic
from hwmodels.table import FloatArray, IntArray
from search.judge import Verdicts
from search.mining import unmet_neighbours
from search.objectives import DIRECTIONS, aggregated, best_known, front_rows, scores
from search.samplers import (
    BATCH,
    ENUMERATED_AT_ONCE,
    ENUMERATION,
    Choice,
    design_of,
    distributions,
    params_of,
    quiet_optuna,
    sampler,
    spread_designs,
)
from search.study_space import StudySpace

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

RECORD = "record"
REPEAT = "repeat"
FRUITLESS = 5
"""Batches in a row without a new design, and without one near the best, that end a study."""
CLIMBED = 64
"""Best designs whose neighbours may fill a batch."""
WORST = 1e6


class Keeper(Protocol):
    """Where trials are kept; `search.storage.Ledger` is one."""

    @property
    def trials(self) -> Sequence[FrozenTrial]:
        """Trials kept so far, whole batches only."""
        ...

    @property
    def batches(self) -> int:
        """How many batches they are."""
        ...

    def append(self, trials: Sequence[FrozenTrial]) -> None:
        """Add a whole batch."""
        ...


class NotKept:
    """A keeper of nothing."""

    def __init__(self) -> None:
        self.trials: Sequence[FrozenTrial] = ()
        self.batches = 0

    def append(self, trials: Sequence[FrozenTrial]) -> None:
        """Count the batch."""
        self.batches += 1


Evaluator = Callable[[IntArray], Verdicts]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a study is.

    Args:
        designs: Judged so far.
        trials: To judge in all.
        elapsed_s: Since this run began.
        judged: Judged by this run.
        best: The first objective's best so far; None while nothing is feasible.
    """

    designs: int
    trials: int
    elapsed_s: float
    judged: int
    best: float | None


@dataclass(frozen=True)
class Outcome:
    """What a study looked at.

    Args:
        verdicts: Every design met, in the order met.
        trials: Trials, repeats included.
        history: (designs judged, best of the first objective) at every improvement.
        elapsed_s: Of this run.
        evaluator_s: Of it, spent judging designs.
        judged: Designs that this run judged.
        interrupted: Whether it was stopped before its budget.
    """

    verdicts: Verdicts
    trials: int
    history: tuple[tuple[int, float], ...]
    elapsed_s: float
    evaluator_s: float
    judged: int
    interrupted: bool


def values_of(space: StudySpace, verdicts: Verdicts) -> FloatArray:
    """(H, objectives) aggregated over models; regret against the best feasible design of these."""
    feasible = verdicts.feasible
    columns = []
    for name in space.objectives:
        values = verdicts.metrics[name]
        best = best_known(name, values[feasible])
        columns.append(aggregated(space, name, values, best))
    return np.stack(columns, axis=1)


class StudyLoop:
    """Runs a study.

    Args:
        space: What may vary.
        choice: How to look through it.
        keeper: Where trials are kept.
        evaluate: Judges designs by number.
        seed: Of everything that is drawn.
    """

    def __init__(
        self, space: StudySpace, choice: Choice, keeper: Keeper, evaluate: Evaluator, *, seed: int
    ) -> None:
        self.space = space
        self.choice = choice
        self.keeper = keeper
        self.evaluate = evaluate
        self.seed = seed
        self._trials: list[FrozenTrial] = list(keeper.trials)
        self._records: dict[int, dict[str, Any]] = {
            trial.user_attrs[RECORD]["design"]: trial.user_attrs[RECORD]
            for trial in self._trials
            if RECORD in trial.user_attrs
        }
        self._known = known_designs(space)
        self._next = 0
        self._study: Study | None = None
        self._evaluator_s = 0.0

    def run(
        self,
        progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Outcome:
        """Look at designs until the budget is spent, the space is exhausted, or `stop` says so."""
        began_s = time.perf_counter()
        already, fruitless, interrupted = len(self._records), 0, False
        budget = min(self.choice.trials, self.space.size)
        with quiet_optuna():
            self._study = self._rebuilt()
            while len(self._records) < budget and fruitless < FRUITLESS:
                if stop is not None and stop():
                    interrupted = True
                    break
                before = len(self._records)
                self._batch(budget - before)
                fruitless = fruitless + 1 if len(self._records) == before else 0
                if progress is not None:
                    progress(
                        Progress(
                            designs=len(self._records),
                            trials=budget,
                            elapsed_s=time.perf_counter() - began_s,
                            judged=len(self._records) - already,
                            best=self._best(),
                        )
                    )
        verdicts = Verdicts.of_records([*self._records.values()])
        return Outcome(
            verdicts=verdicts,
            trials=len(self._trials),
            history=self._history(verdicts),
            elapsed_s=time.perf_counter() - began_s,
            evaluator_s=self._evaluator_s,
            judged=len(self._records) - already,
            interrupted=interrupted,
        )

    def _rebuilt(self) -> Study:
        import optuna
        from optuna.study import StudyDirection

        study = optuna.create_study(
            directions=[StudyDirection[DIRECTIONS[o].upper()] for o in self.space.objectives]
        )
        study.add_trials(self._trials)
        return study

    def _batch(self, left: int) -> None:
        before = len(self._trials)
        if self.choice.name == ENUMERATION:
            self._enumerate(min(left, ENUMERATED_AT_ONCE))
        else:
            self._propose(left)
        self.keeper.append(self._trials[before:])

    def _judge(self, designs: Sequence[int]) -> None:
        """Judge designs that were not met before, and remember them."""
        unmet = [design for design in dict.fromkeys(designs) if design not in self._records]
        if not unmet:
            return
        began_s = time.perf_counter()
        verdicts = self.evaluate(np.array(unmet, dtype=np.int64))
        self._evaluator_s += time.perf_counter() - began_s
        for row, design in enumerate(unmet):
            self._records[design] = verdicts.record(row)

    def _enumerate(self, count: int) -> None:
        """The next designs not met, the known ones before all others."""
        from optuna.trial import TrialState, create_trial

        found = [design for design in self._known if design not in self._records][:count]
        while len(found) < count and self._next < self.space.size:
            if self._next not in self._records and self._next not in found:
                found.append(self._next)
            self._next += 1
        self._judge(found)
        spread = distributions(self.space)
        for design, values in zip(found, self._told(found), strict=True):
            record = self._records[design]
            self._trials.append(
                create_trial(
                    state=TrialState.COMPLETE,
                    values=values,
                    params=params_of(self.space, design),
                    distributions=spread,
                    user_attrs=_attributes(record, repeat=False),
                    system_attrs={
                        constraint_key() + name: amount
                        for name, amount in record["excess"].items()
                    },
                )
            )

    def _propose(self, left: int) -> None:
        """Designs that the sampler asks for, the known ones first.

        A whole batch is asked for whatever is left of the budget, and its beginning kept: so that
        a larger budget starts with the very same designs.
        """
        study, space = self._study, self.space
        if study is None:
            raise RuntimeError("the study has not been started")
        name, batch = self.choice.name, self.keeper.batches
        count = BATCH[name]
        study.sampler = sampler(name, self.seed, batch)
        first = [design for design in self._known if design not in self._records][:count]
        if name in ("qmc", "random"):
            place = max(0, len(self._trials) - len(self._known))
            first += spread_designs(space, name, self.seed, place, count - len(first))
        spread = distributions(space)
        asked = self._asked(spread, first, count)
        designs = [design_of(space, trial.params) for trial in asked]
        met = set(self._records)
        fresh = set(designs) - met
        if len(fresh) < count and name not in ("qmc", "random"):
            near = unmet_neighbours(
                space, self._ranked()[:CLIMBED], met | fresh, count - len(fresh)
            )
            asked += self._asked(spread, near, len(near))
            designs += near
        before = len(self._trials)
        designs = _beginning(designs, met, left)
        asked = asked[: len(designs)]
        self._judge(designs)
        for trial, design, values in zip(asked, designs, self._told(designs), strict=True):
            record = self._records[design]
            for key, value in _attributes(record, repeat=design in met).items():
                trial.set_user_attr(key, value)
            for constraint, amount in record["excess"].items():
                trial.set_constraint(constraint, amount)
            study.tell(trial, values)
            met.add(design)
        self._trials = study.get_trials(deepcopy=False)[: before + len(asked)]

    def _asked(
        self, spread: Mapping[str, BaseDistribution], first: Sequence[int], count: int
    ) -> list[Trial]:
        """Trials of some designs, and of what the sampler proposes after them."""
        if self._study is None:
            raise RuntimeError("the study has not been started")
        for design in first:
            self._study.enqueue_trial(params_of(self.space, design))
        return [self._study.ask(dict(spread)) for _ in range(count)]

    def _ranked(self) -> list[int]:
        """Feasible designs met, the best first: by front after front where objectives compete."""
        records = [
            record
            for record in self._records.values()
            if all(amount <= 0.0 for amount in record["excess"].values())
        ]
        if not records:
            return []
        values = values_of(self.space, Verdicts.of_records(records))
        scored = np.stack(
            [scores(o, values[:, i]) for i, o in enumerate(self.space.objectives)], axis=1
        )
        first = front_rows(scored).tolist()
        later = np.argsort(-scored[:, 0], kind="stable").tolist()
        return [records[row]["design"] for row in dict.fromkeys(first + later)]

    def _told(self, designs: Sequence[int]) -> list[list[float]]:
        """What a sampler is told of each design: its objectives, or how far it is from feasible.

        An infeasible design has the values of a very bad one, worse the further it is off.
        """
        verdicts = Verdicts.of_records([self._records[design] for design in designs])
        feasible = verdicts.feasible
        known = self._feasible_metrics()
        told = np.empty((len(designs), len(self.space.objectives)))
        violation = sum(np.maximum(column, 0.0) for column in verdicts.excess.values())
        for place, name in enumerate(self.space.objectives):
            best = best_known(name, known[name])
            values = aggregated(self.space, name, verdicts.metrics[name], best)
            bad = -violation if DIRECTIONS[name] == "maximize" else WORST * (1.0 + violation)
            told[:, place] = np.where(feasible, values, bad)
        listed: list[list[float]] = told.tolist()
        return listed

    def _feasible_metrics(self) -> dict[str, FloatArray]:
        """(F, W) metrics of the feasible designs met so far."""
        models = len(self.space.jobs)
        rows = [
            record["metrics"]
            for record in self._records.values()
            if all(amount <= 0.0 for amount in record["excess"].values())
        ]
        return {
            name: np.array([row[name] for row in rows], dtype=float).reshape(-1, models)
            for name in self.space.objectives
        }

    def _best(self) -> float | None:
        name = self.space.objectives[0]
        known = self._feasible_metrics()[name]
        if not len(known):
            return None
        values = aggregated(self.space, name, known, best_known(name, known))
        return float(values[np.argmax(scores(name, values))])

    def _history(self, verdicts: Verdicts) -> tuple[tuple[int, float], ...]:
        name = self.space.objectives[0]
        values = values_of(self.space, verdicts)[:, 0]
        score = np.where(verdicts.feasible, scores(name, values), -np.inf)
        before = np.concatenate(([-np.inf], np.maximum.accumulate(score)[:-1]))
        improved = np.flatnonzero(score > before)
        return tuple((int(row) + 1, float(values[row])) for row in improved)


def _beginning(designs: Sequence[int], met: Collection[int], new: int) -> list[int]:
    """The designs up to the last of `new` that were not met before."""
    fresh: set[int] = set()
    for place, design in enumerate(designs):
        if design not in met and design not in fresh:
            if len(fresh) == new:
                return list(designs[:place])
            fresh.add(design)
    return list(designs)


def known_designs(space: StudySpace) -> list[int]:
    """The designs that the file wants met first, each snapped to the nearest of the space."""
    silicons = {entry.name: entry.design for entry in load_known_silicon()}
    found = []
    for entry in space.start:
        if isinstance(entry, str):
            wanted: Mapping[str, Any] = silicon_values(silicons[entry])
        else:
            wanted = entry
        at = [axis.nearest(wanted[axis.name]) if axis.name in wanted else 0 for axis in space.axes]
        found.append(int(space.index(np.array([at]))[0]))
    return list(dict.fromkeys(found))


def silicon_values(design: Systolic) -> dict[str, Any]:
    """A known silicon's values by the keys of a space file."""
    fields = design.numbers()
    values: dict[str, Any] = {key: fields[key] for key in (*WHOLE, "special_per_cycle_per_core")}
    values |= {key: fields[field] for key, (field, _) in KEYS.items()}
    return values | {"memory": design.memory, "precision": design.precision}


def _attributes(record: Mapping[str, Any], *, repeat: bool) -> dict[str, Any]:
    """User attributes of a trial: its record, and its constraints where dashboards look."""
    shown = {f"constraint:{name}": amount for name, amount in record["excess"].items()}
    return {RECORD: dict(record), **shown, **({REPEAT: True} if repeat else {})}


@cache
def constraint_key() -> str:
    """What Optuna puts before a constraint's name among a trial's system attributes."""
    import optuna

    with quiet_optuna():
        study = optuna.create_study()
        study.ask().set_constraint("x", 0.0)
    key = next(key for key in study.trials[0].system_attrs if key.endswith("x"))
    return key.removesuffix("x")
