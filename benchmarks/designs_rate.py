"""Designs a second, each at its exact best plan: 10,000 designs of the template for GPT-3 175B.

    python benchmarks/designs_rate.py [--designs N] [--workers W] [--sampler-trials N]

The job: 1,024 devices, batch 1,536, sequences of 2,048; the plans: the whole compact space. Every
design is physically possible and different. Prints a table, then one JSON object: the evaluator
alone, by the clock and in processor time of one core; a study with NSGA-II in the loop over the
same space, its Optuna time included; how many plans were priced of how many there are; peak memory
of the process and of its largest worker.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[threads] = "1"  # read when numpy is imported

import numpy as np  # noqa: E402

from dse.rules import Job  # noqa: E402
from hwmodels.sourced import document  # noqa: E402
from search.executors import evaluator  # noqa: E402
from search.judge import Judge, relative_excess  # noqa: E402
from search.samplers import Choice, spread_designs  # noqa: E402
from search.space import PlanSpace, named_space  # noqa: E402
from search.space_file import read_space  # noqa: E402
from search.study import NotKept, StudyLoop  # noqa: E402
from search.study_space import StudySpace  # noqa: E402

SPACE = """
kind: space
models:
  - {model: gpt3-175b, global_batch_size: 1536, seq_length: 2048}
chips: 1024
template:
  node_nm: 5
  clock: {low: "0.8 GHz", high: "1.6 GHz", step: "0.1 GHz"}
  cores: [4, 6, 8, 10, 12, 16]
  arrays_per_core: [1, 2, 4, 8]
  rows: [64, 128, 256]
  cols: [64, 128, 256]
  lanes_per_core: [512, 1024, 2048]
  special_per_cycle_per_core: [128, 256, 512]
  scratchpad_per_core: ["4 MiB", "8 MiB", "16 MiB", "32 MiB"]
  memory: hbm3
  memory_stacks: [3, 4, 5, 6]
network:
  scaleup: {low: "100 GB/s", high: "900 GB/s", step: "100 GB/s"}
  scaleup_size: [8, 16, 32, 64]
  topology: [switch, torus-3d]
  nic: ["100 Gb/s", "200 Gb/s", "400 Gb/s", "800 Gb/s"]
objectives: [throughput]
"""
AT_ONCE = 2_000
SAMPLED = 512


def possible_designs(space: StudySpace, count: int) -> np.ndarray:
    """Different designs that break no limit of physics, drawn at random."""
    judge, found, place = Judge(space), {}, 0
    while len(found) < count:
        drawn = np.array(spread_designs(space, "random", 0, place, AT_ONCE))
        place += AT_ONCE
        excess = relative_excess(judge.candidates(drawn))
        built = np.all(np.stack([*excess.values()]) <= 0.0, axis=0)
        found |= dict.fromkeys(drawn[built].tolist())
    return np.array(list(found)[:count])


def plans_of(space: StudySpace) -> int:
    job = space.jobs[0]
    config, length = job.workload.config, job.workload.seq_length
    return PlanSpace(named_space("compact"), Job(config, length, 1024), 1536).count()


def peak_bytes() -> int:
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    largest_worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return 1024 * (own + largest_worker)


def judged_here(space: StudySpace, designs: np.ndarray) -> float:
    """Processor seconds a design of one process, whatever else the machine does."""
    judge = Judge(space)
    judge(designs[:1])
    began_s = time.process_time()
    judge(designs)
    return (time.process_time() - began_s) / len(designs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--designs", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sampler-trials", type=int, default=2_000)
    options = parser.parse_args()
    space = read_space(document(SPACE, "benchmark", ("space",)))
    designs = possible_designs(space, options.designs)
    with evaluator(space, seed=0, workers=options.workers) as evaluate:
        evaluate(designs[: options.workers])  # workers start and list the plans
        began_s = time.perf_counter()
        pairs = fits = 0
        best_s = np.inf
        for start in range(0, len(designs), AT_ONCE):
            verdicts = evaluate(designs[start : start + AT_ONCE])
            pairs += verdicts.pairs
            fits += int(np.isfinite(verdicts.step_time_s[:, 0]).sum())
            best_s = min(best_s, float(verdicts.step_time_s.min()))
        evaluator_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        choice = Choice("nsga2", "", options.sampler_trials)
        outcome = StudyLoop(space, choice, NotKept(), evaluate, seed=0).run()
        study_s = time.perf_counter() - began_s
    cpu_s = judged_here(space, designs[:SAMPLED])
    plans = plans_of(space)
    result = {
        "benchmark": "designs_rate",
        "job": "gpt3-175b, 1024 devices, batch 1536, s 2048",
        "designs": len(designs),
        "designs_with_a_plan": fits,
        "plans_a_design": plans,
        "pairs_priced": pairs,
        "share_priced": pairs / (plans * len(designs)),
        "evaluator_s": evaluator_s,
        "designs_per_s": len(designs) / evaluator_s,
        "cpu_s_per_design": cpu_s,
        "best_step_time_s": best_s,
        "nsga2_trials": outcome.trials,
        "nsga2_designs": outcome.judged,
        "nsga2_s": study_s,
        "nsga2_evaluator_s": outcome.evaluator_s,
        "workers": options.workers,
        "peak_rss_bytes": peak_bytes(),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    print(f"{result['job']}: {plans:,} compact plans a design")
    rows = [
        (f"{len(designs):,} designs at their best plans", f"{evaluator_s:,.1f} s"),
        ("designs a second", f"{result['designs_per_s']:,.0f}"),
        ("processor time a design", f"{1e3 * cpu_s:,.2f} ms"),
        ("plans priced, of all", f"{100 * result['share_priced']:.2f} %"),
        (f"NSGA-II, {outcome.judged:,} designs", f"{study_s:,.1f} s"),
        ("of it judging designs", f"{outcome.evaluator_s:,.1f} s"),
        ("peak memory", f"{result['peak_rss_bytes'] / 2**20:,.0f} MiB"),
    ]
    for name, amount in rows:
        print(f"{name:<40}{amount:>14}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
