"""Who proposes designs: every sampler by name, and the rule that picks one.

A sampler is made afresh for every batch from (seed, batch), so that what a batch proposes depends
on the trials before it and on nothing else: a study that was interrupted goes on as if it had not
been.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hwmodels.errors import ConfigError
from search.study_space import StudySpace

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

ENUMERATION = "enumeration"
SAMPLERS = ("tpe", "nsga2", "cmaes", "gp", "qmc", "random")
FEW_TRIALS = 1_000
"""Beyond this each proposal of TPE and CMA-ES takes tens of milliseconds."""
BATCH = {"tpe": 16, "nsga2": 100, "cmaes": 24, "gp": 8, "qmc": 64, "random": 64}
ENUMERATED_AT_ONCE = 512
DEFAULT_TRIALS = 400
ENUMERATED_BY_DEFAULT = 2_000
"""A space of at most this many designs is enumerated where no budget is given."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to look through a space, and why it was taken."""

    name: str
    why: str
    trials: int


def choose(space: StudySpace, trials: int | None, asked: str | None) -> Choice:
    """The sampler of a study, by a stated rule.

    A space that the budget covers is enumerated. Several objectives, or more than 1,000 trials,
    take NSGA-II; one objective over at least two numeric axes takes CMA-ES, over fewer TPE. A
    sampler asked for by name is taken as it is.

    Raises:
        ConfigError: An unknown sampler, or one that the space does not suit.
    """
    budget = trials if trials is not None else space.trials
    if asked is not None:
        _check(space, asked)
        chosen = budget if budget is not None else DEFAULT_TRIALS
        return Choice(asked, "asked for", min(chosen, space.size))
    if budget is None:
        budget = space.size if space.size <= ENUMERATED_BY_DEFAULT else DEFAULT_TRIALS
    if budget >= space.size:
        return Choice(ENUMERATION, f"the budget covers all {space.size:,} designs", space.size)
    if len(space.objectives) > 1:
        return Choice("nsga2", f"{len(space.objectives)} objectives", budget)
    if budget > FEW_TRIALS:
        return Choice("nsga2", f"more than {FEW_TRIALS:,} trials", budget)
    if _numeric(space) >= 2:
        return Choice("cmaes", "one objective over two or more numeric axes", budget)
    return Choice("tpe", "one objective over axes of words", budget)


def _check(space: StudySpace, name: str) -> None:
    if name not in SAMPLERS:
        raise ConfigError(
            f"no sampler is called {name!r}", field="--sampler", value=name, allowed=list(SAMPLERS)
        )
    if name == "cmaes" and (len(space.objectives) > 1 or _numeric(space) < 2):
        raise ConfigError(
            "CMA-ES needs one objective and at least two numeric axes",
            field="--sampler",
            value=name,
            allowed=[known for known in SAMPLERS if known != "cmaes"],
        )
    if name == "gp":
        from importlib.util import find_spec

        if find_spec("torch") is None:
            raise ConfigError(
                "the GP sampler needs torch",
                field="--sampler",
                value=name,
                hint="install the extra [torch], or take tpe",
            )


def _numeric(space: StudySpace) -> int:
    return sum(axis.is_ordered for axis in space.varying)


def distributions(space: StudySpace) -> dict[str, BaseDistribution]:
    """What a trial draws: a position on each ordered axis, a word on each other one."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    return {
        axis.name: IntDistribution(0, len(axis) - 1)
        if axis.is_ordered
        else CategoricalDistribution([str(value) for value in axis.values])
        for axis in space.varying
    }


def design_of(space: StudySpace, params: Mapping[str, Any]) -> int:
    """The number of the design that a trial drew."""
    at = [
        0
        if axis.name not in params
        else int(params[axis.name])
        if axis.is_ordered
        else axis.values.index(params[axis.name])
        for axis in space.axes
    ]
    return int(space.index(np.array([at]))[0])


def params_of(space: StudySpace, design: int) -> dict[str, Any]:
    """What a trial of a design draws."""
    at = space.positions(np.array([design]))[0]
    return {
        axis.name: int(at[i]) if axis.is_ordered else str(axis.values[at[i]])
        for i, axis in enumerate(space.axes)
        if len(axis) > 1
    }


def sampler(name: str, seed: int, batch: int) -> BaseSampler:
    """A fresh sampler for one batch. `qmc` and `random` propose through `spread_designs`."""
    import optuna

    stream = int(np.random.SeedSequence((seed, batch)).generate_state(1)[0])
    if name == "tpe":
        return optuna.samplers.TPESampler(seed=stream, multivariate=True)
    if name == "nsga2":
        return optuna.samplers.NSGAIISampler(seed=stream, population_size=BATCH["nsga2"])
    if name == "cmaes":
        return optuna.samplers.CmaEsSampler(
            seed=stream,
            popsize=BATCH["cmaes"],
            with_margin=True,
            warn_independent_sampling=False,
        )
    if name == "gp":
        return optuna.samplers.GPSampler(seed=stream, deterministic_objective=True)
    return optuna.samplers.RandomSampler(seed=stream)


def spread_designs(space: StudySpace, name: str, seed: int, start: int, count: int) -> list[int]:
    """Designs `start` to `start + count` of a sequence that looks at no result.

    `random` draws each axis alike; `qmc` is a scrambled Sobol sequence over the axes.
    """
    lengths = np.array(space.lengths)
    if name == "random":
        rows = [
            np.random.default_rng((seed, place)).integers(0, lengths)
            for place in range(start, start + count)
        ]
        return [int(number) for number in space.index(np.array(rows))]
    from scipy.stats.qmc import Sobol

    sequence = Sobol(len(lengths), scramble=True, rng=np.random.default_rng(seed))
    if start:
        sequence.fast_forward(start)
    with warnings.catch_warnings():
        # Sobol points keep their balance in powers of two; a batch need not be one.
        warnings.simplefilter("ignore", UserWarning)
        points = sequence.random(count)
    return [int(number) for number in space.index((points * lengths).astype(np.int64))]


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Optuna without its running commentary and its notices of experimental features."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # CMA-ES sees infeasible designs by their bad values.
            warnings.filterwarnings("ignore", "Constraints have been set, but CmaEs")
            yield
    finally:
        optuna.logging.set_verbosity(level)
