"""Errors, coverage and rank quality of predictions against published times.

Errors are of time: 100 (predicted - measured) / measured. Rank quality is judged inside groups of
runs of the same source, model, chips and global batch, which differ in their plan alone: Kendall's
tau over the pairs whose measured times differ by at least 5 % (repeats differ by up to that), and
regret, how much slower the plan predicted fastest really was than the fastest measured one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from hwmodels.table import FloatArray

SAME_TIME = 0.05
"""Measured times closer than this are no pair for tau."""
NORMAL = {"50": 0.6744897501960817, "80": 1.2815515655446004, "95": 1.959963984540054}
"""Half-widths of central intervals in standard deviations."""

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Predictions beside measurements, N rows.

    Args:
        predicted_s: (N,).
        measured_s: (N,).
        sd_low: (N,) log standard deviation towards fast.
        sd_high: (N,) log standard deviation towards slow.
        baseline_s: (N,) by the one-line baseline.
        fair_s: (N,) by the fair baseline.
        families: Family of each row.
        groups: Group of each row for rank quality.
    """

    predicted_s: FloatArray
    measured_s: FloatArray
    sd_low: FloatArray
    sd_high: FloatArray
    baseline_s: FloatArray
    fair_s: FloatArray
    families: Sequence[str]
    groups: Sequence[Hashable]

    @property
    def error_pct(self) -> FloatArray:
        """(N,) signed error of the time in per cent."""
        error: FloatArray = 100.0 * (self.predicted_s / self.measured_s - 1.0)
        return error

    def where(self, keep: BoolArray) -> Outcome:
        """The rows where `keep` is true."""
        rows = np.flatnonzero(keep).tolist()
        return Outcome(
            self.predicted_s[rows],
            self.measured_s[rows],
            self.sd_low[rows],
            self.sd_high[rows],
            self.baseline_s[rows],
            self.fair_s[rows],
            [self.families[i] for i in rows],
            [self.groups[i] for i in rows],
        )

    def covered(self, level: str) -> BoolArray:
        """(N,) whether the measured time lies in the central interval of 50, 80 or 95 %."""
        distance = np.log(self.measured_s / self.predicted_s)
        inside: BoolArray = (distance <= NORMAL[level] * self.sd_high) & (
            -distance <= NORMAL[level] * self.sd_low
        )
        return inside

    def bounds_s(self, level: str) -> tuple[FloatArray, FloatArray]:
        """(N,) ends of the central interval."""
        low: FloatArray = self.predicted_s * np.exp(-NORMAL[level] * self.sd_low)
        high: FloatArray = self.predicted_s * np.exp(NORMAL[level] * self.sd_high)
        return low, high


def scores(outcome: Outcome) -> dict[str, float | int | None]:
    """The numbers of a set of rows, None where there is nothing to judge."""
    count = len(outcome.measured_s)
    found: dict[str, float | int | None] = {"evaluated": count}
    names = ("mean_abs_error_pct", "median_abs_error_pct", "bias_pct")
    if not count:
        lines = ("", "baseline_", "fair_baseline_")
        means = [f"{line}{kind}mean_abs_error_pct" for line in lines for kind in ("", "macro_")]
        found |= dict.fromkeys((*names, *means, "kendall_tau", "regret_pct"))
        return found | {f"coverage_{level}_pct": None for level in NORMAL}
    error = outcome.error_pct
    magnitude = np.abs(error)
    found |= dict(
        zip(names, map(float, (magnitude.mean(), np.median(magnitude), error.mean())), strict=True)
    )
    families = np.asarray(outcome.families)

    def macro(missed_pct: FloatArray) -> float:
        each = [missed_pct[families == family].mean() for family in np.unique(families)]
        return float(np.mean(each))

    found["macro_mean_abs_error_pct"] = macro(magnitude)
    for level in NORMAL:
        found[f"coverage_{level}_pct"] = 100.0 * float(outcome.covered(level).mean())
    for name, time_s in (("baseline", outcome.baseline_s), ("fair_baseline", outcome.fair_s)):
        missed = np.abs(time_s / outcome.measured_s - 1.0)
        found[f"{name}_mean_abs_error_pct"] = 100.0 * float(missed.mean())
        found[f"{name}_macro_mean_abs_error_pct"] = 100.0 * macro(missed)
    tau, regret = rank_quality(outcome.predicted_s, outcome.measured_s, outcome.groups)
    return found | {"kendall_tau": tau, "regret_pct": regret}


def rank_quality(
    predicted_s: FloatArray, measured_s: FloatArray, groups: Sequence[Hashable]
) -> tuple[float | None, float | None]:
    """Mean over groups of Kendall's tau and of regret in per cent; None without a group.

    Groups whose predictions are all equal hold one plan measured several times: no choice.
    """
    members: dict[Hashable, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    taus, regrets = [], []
    for rows in members.values():
        guess, real = predicted_s[rows], measured_s[rows]
        if len(rows) < 2 or np.ptp(guess) <= 1e-12 * guess.max():
            continue
        tau = kendall_tau(guess, real)
        if tau is not None:
            taus.append(tau)
        chosen = np.isclose(guess, guess.min(), rtol=1e-12)
        regrets.append(100.0 * (float(real[chosen].mean()) / float(real.min()) - 1.0))
    return (
        float(np.mean(taus)) if taus else None,
        float(np.mean(regrets)) if regrets else None,
    )


def kendall_tau(predicted_s: FloatArray, measured_s: FloatArray) -> float | None:
    """Concordant less discordant pairs over pairs that differ; None where no pair differs."""
    agree, pairs = 0.0, 0
    for a, b in combinations(range(len(measured_s)), 2):
        apart = abs(measured_s[a] - measured_s[b]) / min(measured_s[a], measured_s[b])
        if apart < SAME_TIME:
            continue
        pairs += 1
        agree += float(np.sign(predicted_s[a] - predicted_s[b])
                       * np.sign(measured_s[a] - measured_s[b]))  # fmt: skip
    return agree / pairs if pairs else None
