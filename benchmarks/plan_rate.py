"""Plans a second on one core, over the full space of GPT-3 175B on 1,024 A100-80.

    python benchmarks/plan_rate.py [--repeat N]

Prints a table, then one JSON object. Measured: pricing every plan of the space (memory and time,
nothing dropped), the exact search (with its discards), and the same evaluator called a row at a
time on a sample. Array passes are counted, not estimated: one chunk is priced with arrays of a
subclass that counts every numpy call whose result is as long as the chunk. Beside them stand the
rates of Calculon's exhaustive search (calculon-ai/calculon at caa4b11, GPT-3 175B on 1,024 GPUs,
one core, measured for this project): 143 candidates/s as shipped, and 550 (1.82 ms each) with its
logging silenced.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from typing import Any

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[threads] = "1"  # read when numpy is imported

import numpy as np  # noqa: E402

from dse.rules import Job  # noqa: E402
from dse.stacks import default_stack  # noqa: E402
from dse.step import StepModel  # noqa: E402
from dse.workload import load_model, make_workload  # noqa: E402
from hwmodels import HardwareTable, load_cluster  # noqa: E402
from search.exact import exact_search  # noqa: E402
from search.space import CHUNK_ROWS, PlanSpace, named_space  # noqa: E402

MODEL, CLUSTER, CHIPS, BATCH, SEQ_LENGTH = "gpt3-175b", "dgx-a100-80gb", 1024, 1536, 2048
CALCULON_PER_S = {"as shipped": 143, "without its logging": 550}
ROWS_SAMPLED = 500


class Counted(np.ndarray):
    """Arrays that count the numpy calls made on them with results of at least `least` elements."""

    least = 0
    passes = 0

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        plain = [_plain(value) for value in inputs]
        if out:
            options["out"] = tuple(_plain(value) for value in out)
        return _counted(getattr(ufunc, method)(*plain, **options))

    def __array_function__(self, function, types, args, options):
        plain = {key: _plain(value) for key, value in options.items()}
        return _counted(function(*(_plain(value) for value in args), **plain))

    def __getitem__(self, index):
        taken = self.view(np.ndarray)[_plain(index)]
        view = isinstance(taken, np.ndarray) and np.shares_memory(taken, self)
        return taken.view(Counted) if view else _counted(taken)

    def astype(self, *args, **options):
        return _counted(self.view(np.ndarray).astype(*args, **options))


def _plain(value: Any) -> Any:
    if isinstance(value, Counted):
        return value.view(np.ndarray)
    if isinstance(value, tuple | list):
        return type(value)(_plain(item) for item in value)
    return value


def _counted(result: Any) -> Any:
    if not isinstance(result, np.ndarray):
        return result
    if result.size >= Counted.least:
        Counted.passes += 1
    return result.view(Counted)


def array_passes(hardware: HardwareTable) -> tuple[int, int]:
    """Numpy calls with chunk-long results in pricing one chunk, and the rows of the chunk."""
    space = plan_space()
    space.values = {axis: values.view(Counted) for axis, values in space.values.items()}
    counting = HardwareTable(
        names=hardware.names,
        num_chips=hardware.num_chips,
        chip={name: column.view(Counted) for name, column in hardware.chip.items()},
        level_kinds=hardware.level_kinds,
        level_size=hardware.level_size,
        level={name: column.view(Counted) for name, column in hardware.level.items()},
        level_reduces=hardware.level_reduces,
        chips_per_node=hardware.chips_per_node,
    )
    model = step_model(counting)
    chunk = list(space.chunks())[len(list(space.chunks())) // 2]
    model.evaluate(chunk)  # the tables over distinct keys are built here
    Counted.least, Counted.passes = len(chunk), 0
    model.evaluate(chunk)
    return Counted.passes, len(chunk)


def plan_space() -> PlanSpace:
    job = Job(load_model(MODEL), SEQ_LENGTH, CHIPS)
    return PlanSpace(named_space("full"), job, BATCH)


def step_model(hardware: HardwareTable) -> StepModel:
    return StepModel(make_workload(load_model(MODEL), SEQ_LENGTH), hardware, default_stack())


def price_everything(hardware: HardwareTable) -> int:
    model = step_model(hardware)
    return sum(model.evaluate(chunk).step_time_s.size for chunk in plan_space().chunks())


def search(hardware: HardwareTable) -> int:
    found = exact_search(step_model(hardware), plan_space().chunks(), top=10)
    return found.enumerated


def price_rows(hardware: HardwareTable) -> int:
    model = step_model(hardware)
    chunks = plan_space().chunks()
    chunk = next(chunks)
    rows = np.linspace(0, len(chunk) - 1, ROWS_SAMPLED).astype(int)
    for row in rows:
        model.evaluate(chunk.take(np.array([row])))
    return len(rows)


def plans_per_s(work: Any, hardware: HardwareTable, repeat: int) -> dict[str, float]:
    """The best of `repeat` runs, each with a model of its own, by CPU seconds and by the clock.

    One thread on one core: the two differ only by what other users of the machine take.
    """
    cpu = wall = 0.0
    for _ in range(repeat):
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        count = work(hardware)
        wall = max(wall, count / (time.perf_counter() - wall_s))
        cpu = max(cpu, count / (time.process_time() - cpu_s))
    return {"cpu": cpu, "wall": wall}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    hardware = HardwareTable.of([load_cluster(CLUSTER, num_chips=CHIPS)])
    result = {
        "benchmark": "plan_rate",
        "space": "full",
        "job": f"{MODEL} on {CHIPS} x {CLUSTER}, batch {BATCH}, s {SEQ_LENGTH}",
        "plans": plan_space().count(),
        "chunk_rows": CHUNK_ROWS,
        "evaluate_plans_per_s": plans_per_s(price_everything, hardware, repeat),
        "search_plans_per_s": plans_per_s(search, hardware, repeat),
        "row_at_a_time_plans_per_s": plans_per_s(price_rows, hardware, repeat),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "calculon_candidates_per_s": CALCULON_PER_S,
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    result["array_passes"], result["array_pass_rows"] = array_passes(hardware)
    rows = [
        ("every plan priced, one core", result["evaluate_plans_per_s"]),
        ("exact search of the space", result["search_plans_per_s"]),
        ("same evaluator, a row at a time", result["row_at_a_time_plans_per_s"]),
    ]
    print(f"{result['job']}: {result['plans']:,} plans of space full")
    print(f"{'plans/s':<34}{'CPU time':>14}{'clock':>14}")
    for name, rate in rows:
        print(f"{name:<34}{rate['cpu']:>14,.0f}{rate['wall']:>14,.0f}")
    for how, published in CALCULON_PER_S.items():
        print(f"{'Calculon ' + how:<34}{'':>14}{published:>14,}")
    passes, length = result["array_passes"], result["array_pass_rows"]
    print(f"{'array passes a chunk':<34}{passes:>14,} of {length:,} rows")
    print(f"{'peak memory':<34}{result['peak_rss_bytes'] / 2**20:>14,.0f} MiB")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
