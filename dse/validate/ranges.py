"""Write `dse/ranges.yaml`, what measured rows cover: `python -m dse.validate.ranges`.

Of published runs those that tell levels, of kernels those that set parameters. Beyond what they
cover a prediction is an extrapolation, see `dse/extrapolation.py`.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

import dse
from dse.extrapolation import DEGREES, ranges
from dse.validate.published import training_cases
from hwmodels.calibration import rows


def measured_ranges() -> dict[str, Any]:
    """Ranges of matmuls by silicon, of runs by silicon, and of degrees over all runs."""
    sizes = defaultdict(list)
    for observation in rows.read()[0]:
        if observation.kind == "matmul" and observation.fits:
            sizes[observation.device.silicon].append(observation.sizes)
    cases = training_cases()
    runs = defaultdict(list)
    for case in cases:
        runs[case.generation].append((case.workload.seq_length, case.cluster.num_chips))
    return {
        "written_by": "dse.validate.ranges",
        "matmul": {silicon: _matmul(np.array(found)) for silicon, found in sorted(sizes.items())},
        "runs": {
            silicon: {
                "rows": len(found),
                "longest_seq": max(seq for seq, _ in found),
                "most_chips": max(chips for _, chips in found),
            }
            for silicon, found in sorted(runs.items())
        },
        "shortest_seq": min(case.workload.seq_length for case in cases),
        "longest_seq": max(case.workload.seq_length for case in cases),
        "degrees": {
            degree: max(int(getattr(case.plan, degree) or 1) for case in cases)
            for degree in DEGREES
        },
    }


def _matmul(sizes: Any) -> dict[str, Any]:
    flop = 2.0 * sizes.prod(axis=1)
    return {
        "rows": len(sizes),
        "least_flop": float(flop.min()),
        "most_flop": float(flop.max()),
        "least_side": int(sizes[:, :3].min()),
    }


def main() -> int:
    """Overwrite the shipped file."""
    path = Path(dse.__file__).with_name("ranges.yaml")
    # YAML in its JSON form, which every command reads in a hundredth of the time.
    path.write_text(json.dumps(measured_ranges(), indent=1) + "\n", encoding="utf-8")
    ranges.cache_clear()
    return 0


if __name__ == "__main__":
    sys.exit(main())
