"""How far samplers end from the optimum after 5 % of a space's designs, on two spaces known whole.

    python benchmarks/sampler_gap.py [--seeds N]

Each space is judged whole once; samplers then run over the table of verdicts. Prints, for each,
the median and the worst gap to the best feasible design over the seeds, and the seconds a run
takes; the default sampler by the rule of the command is marked. Then one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import time

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[threads] = "1"  # read when numpy is imported

import numpy as np  # noqa: E402

from hwmodels.sourced import document  # noqa: E402
from search.judge import Judge  # noqa: E402
from search.samplers import Choice, choose  # noqa: E402
from search.space_file import read_space  # noqa: E402
from search.study import NotKept, StudyLoop, values_of  # noqa: E402

FIRST = """
kind: space
models:
  - {model: gpt3-6.7b, global_batch_size: 512, seq_length: 2048}
chips: 64
template:
  node_nm: 5
  clock: {low: "0.8 GHz", high: "1.6 GHz", step: "0.4 GHz"}
  cores: [4, 8, 12]
  arrays_per_core: [2, 4, 8]
  rows: 128
  cols: [64, 128, 256]
  lanes_per_core: [512, 1024]
  special_per_cycle_per_core: 256
  scratchpad_per_core: ["4 MiB", "16 MiB"]
  memory: hbm3
  memory_stacks: [3, 4, 5]
network:
  scaleup: {low: "100 GB/s", high: "500 GB/s", step: "100 GB/s"}
  scaleup_size: 8
  nic: "400 Gb/s"
constraints: {tdp: "500 W", price: "4000 USD"}
objectives: [throughput]
"""
SECOND = (
    FIRST.replace("gpt3-6.7b, global_batch_size: 512", "llama-3-8b, global_batch_size: 256")
    .replace("seq_length: 2048", "seq_length: 4096")
    .replace("chips: 64", "chips: 128")
    .replace("scaleup_size: 8", "scaleup_size: [8, 32]\n  topology: [switch, torus-3d]")
    .replace('{low: "100 GB/s", high: "500 GB/s", step: "100 GB/s"}', '["100 GB/s", "300 GB/s"]')
    .replace("[throughput]", "[throughput_per_usd]")
)
SHARE = 0.05
SAMPLERS = ("cmaes", "nsga2", "tpe", "qmc", "random")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    seeds = parser.parse_args().seeds
    result = []
    for name, text in (("throughput", FIRST), ("tokens a dollar", SECOND)):
        space = read_space(document(text, name, ("space",)))
        verdicts = Judge(space)(np.arange(space.size))
        best = float(values_of(space, verdicts)[verdicts.feasible].max())
        trials = int(SHARE * space.size)
        default = choose(space, trials, None).name
        print(
            f"{name}: {space.size:,} designs, {verdicts.feasible.sum():,} feasible, "
            f"{trials} trials"
        )
        for sampler in SAMPLERS:
            began_s = time.perf_counter()
            gaps = []
            for seed in range(seeds):
                choice = Choice(sampler, "", trials)
                outcome = StudyLoop(space, choice, NotKept(), verdicts.take, seed=seed).run()
                gaps.append(1.0 - outcome.history[-1][1] / best if outcome.history else 1.0)
            spent_s = (time.perf_counter() - began_s) / seeds
            mark = "  (default)" if sampler == default else ""
            print(
                f"  {sampler:<8} median {100 * np.median(gaps):6.2f} %  worst "
                f"{100 * max(gaps):6.2f} %  {spent_s:6.1f} s{mark}"
            )
            result.append(
                {
                    "space": name,
                    "designs": space.size,
                    "trials": trials,
                    "sampler": sampler,
                    "default": sampler == default,
                    "median_gap": float(np.median(gaps)),
                    "worst_gap": float(max(gaps)),
                    "seeds": seeds,
                    "seconds": spent_s,
                }
            )
    print(json.dumps({"benchmark": "sampler_gap", "share": SHARE, "runs": result}))


if __name__ == "__main__":
    main()
