"""Sums of (count of something in a design) x (uncertain constant) x (scaling of its node or
memory).

Area and power are such sums. Totals over S draws and H designs are matrix products, one for each
kind of scaling; the parts are the same terms, taken one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hwmodels.accelerator.design import DesignColumns
from hwmodels.accelerator.priors import Constants
from hwmodels.table import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Term:
    """One summand.

    Args:
        part: What it is reported under.
        constant: Name of the constant, or several that multiply.
        count: (H,) how much of it a design has, in the constant's unit.
        by_node: Row of `Constants.by_node` that scales it; empty if it does not scale.
        by_memory: Row of `Constants.by_memory` that scales it; empty if none.
        in_core: Whether it is repeated with the cores, and so may be harvested.
    """

    part: str
    constant: tuple[str, ...]
    count: FloatArray
    by_node: str = ""
    by_memory: str = ""
    in_core: bool = False


def total(terms: Sequence[Term], design: DesignColumns, constants: Constants) -> FloatArray:
    """(S, H) sum of the terms."""
    groups: dict[tuple[str, str], list[Term]] = {}
    for term in terms:
        groups.setdefault((term.by_node, term.by_memory), []).append(term)
    result = np.zeros((len(constants), len(design)))
    for (by_node, by_memory), members in groups.items():
        weights = np.stack([_constant(term, constants) for term in members], axis=1)
        counts = np.stack([term.count for term in members])
        result += (weights @ counts) * _scale(by_node, by_memory, design, constants)
    return result


def parts(
    terms: Sequence[Term], design: DesignColumns, constants: Constants
) -> dict[str, FloatArray]:
    """(S, H) of each part; they sum to `total`."""
    result: dict[str, FloatArray] = {}
    for term in terms:
        value = _constant(term, constants)[:, None] * term.count
        value = value * _scale(term.by_node, term.by_memory, design, constants)
        result[term.part] = result[term.part] + value if term.part in result else value
    return result


def _constant(term: Term, constants: Constants) -> FloatArray:
    product = np.ones(len(constants))
    for name in term.constant:
        product = product * constants.values[name]
    return product


def node_values(name: str, design: DesignColumns, constants: Constants) -> FloatArray:
    """(S, H) of a row that depends on the node; (S, 1) where all designs share one."""
    return _gathered(constants.by_node[name], design.node_index)


def memory_values(name: str, design: DesignColumns, constants: Constants) -> FloatArray:
    """(S, H) of a row that depends on the memory generation; (S, 1) where all designs share
    one."""
    return _gathered(constants.by_memory[name], design.memory)


def _scale(
    by_node: str, by_memory: str, design: DesignColumns, constants: Constants
) -> FloatArray:
    scale: FloatArray = np.ones((1, 1))
    if by_node:
        scale = scale * node_values(by_node, design, constants)
    if by_memory:
        scale = scale * memory_values(by_memory, design, constants)
    return scale


def _gathered(table: FloatArray, index: IntArray) -> FloatArray:
    if len(index) and np.all(index == index[0]):
        column: FloatArray = table[:, index[:1]]
        return column
    gathered: FloatArray = table[:, index]
    return gathered
