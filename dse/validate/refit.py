"""Fit `dse/stacks/levels.yaml` anew: `python -m dse.validate.refit`.

Takes the bundled rows that may tell a level. The file it writes is the only place where a
published run enters the evaluator.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from ruamel.yaml import YAML

import dse.stacks
from dse.stacks.levels import Levels, document_of, shipped_levels
from dse.validate.fit import fit_all
from dse.validate.published import measured_s, training_cases

HEADER = """\
# Written by dse.validate.refit; change the rows, the priors or the fit instead.
# value: factor on kernel times of a stack on a silicon; log_sd: its spread, as a logarithm.
"""


def refit() -> tuple[Levels, dict[str, Levels]]:
    """The levels of all families, and those without each, fitted on the bundled rows."""
    cases = training_cases()
    return fit_all(cases, np.array([measured_s(case.row) for case in cases]))


def write(path: Path, shipped: Levels, without: dict[str, Levels]) -> None:
    """Write levels as the package ships them."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 100
    with path.open("w", encoding="utf-8") as file:
        file.write(HEADER)
        yaml.dump(document_of(shipped, without), file)


def main() -> int:
    """Fit and overwrite the shipped file."""
    path = Path(dse.stacks.__file__).with_name("levels.yaml")
    write(path, *refit())
    shipped_levels.cache_clear()
    return 0


if __name__ == "__main__":
    sys.exit(main())
