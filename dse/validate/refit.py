"""Fit `dse/stacks/levels.yaml` anew: `python -m dse.validate.refit`.

Takes the bundled rows that may tell a level. The file it writes is the only place where a
published run enters the evaluator.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import dse.stacks
from dse.stacks.levels import Levels, document_of, shipped_levels
from dse.validate.fit import fit_all
from dse.validate.published import measured_s, training_cases


def refit() -> tuple[Levels, dict[str, Levels]]:
    """The levels of all families, and those without each, fitted on the bundled rows."""
    cases = training_cases()
    return fit_all(cases, np.array([measured_s(case.row) for case in cases]))


def write(path: Path, shipped: Levels, without: dict[str, Levels]) -> None:
    """Write levels as the package ships them."""
    # YAML in its JSON form, which every command reads in a hundredth of the time.
    text = json.dumps(
        {"written_by": "dse.validate.refit", **document_of(shipped, without)}, indent=1
    )
    path.write_text(text + "\n", encoding="utf-8")


def main() -> int:
    """Fit and overwrite the shipped file."""
    path = Path(dse.stacks.__file__).with_name("levels.yaml")
    write(path, *refit())
    shipped_levels.cache_clear()
    return 0


if __name__ == "__main__":
    sys.exit(main())
