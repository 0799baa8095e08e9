"""Designs at their exact best plans: equal to brute force, monotone, resumable."""

import numpy as np

from dse.rules import Job
from dse.step import StepModel
from hwmodels.sourced import document
from search.inner import plan_of
from search.judge import Judge
from search.space import PlanSpace, named_space
from search.study_space import read_space

SPACE = """
kind: space
models:
  - {model: gpt3-1.3b, global_batch_size: 64, seq_length: 2048}
chips: 16
template:
  node_nm: 5
  clock: {low: "0.8 GHz", high: "1.2 GHz", step: "0.2 GHz"}
  cores: [2, 4, 8]
  arrays_per_core: 4
  rows: 128
  cols: 128
  lanes_per_core: 1024
  special_per_cycle_per_core: 256
  scratchpad_per_core: "8 MiB"
  memory: hbm3
  memory_stacks: [1, 2]
network:
  scaleup: ["100 GB/s", "400 GB/s"]
  nic: "200 Gb/s"
  scaleup_size: [4, 8]
constraints:
  tdp: "400 W"
objectives: [throughput]
"""


def space(text=SPACE, **changes):
    for old, new in changes.items():
        text = text.replace(old, new)
    return read_space(document(text, "small.yaml", ("space",)))


def brute_force(judge, index):
    """Step time of the fastest plan that fits, from every plan of the space on every design."""
    designs = judge.candidates(index)
    job = judge.space.jobs[0]
    times = np.full(len(index), np.inf)
    plans = [None] * len(index)
    for rows in designs.groups(np.ones(len(index), dtype=bool)):
        hardware = designs.hardware(rows)
        model = StepModel(job.workload, hardware, judge.space.stack)
        space = PlanSpace(
            named_space("compact"),
            Job(job.workload.config, job.workload.seq_length, hardware.num_chips),
            job.global_batch_size,
        )
        for chunk in space.chunks():
            time_s = model.evaluate(chunk).step_time_s
            peak = model.memory(chunk).peak_bytes
            time_s = np.where(peak <= model.usable_bytes[:, None], time_s, np.inf)
            for place, row in enumerate(rows):
                best = int(np.argmin(time_s[place]))
                if time_s[place, best] < times[row]:
                    times[row], plans[row] = time_s[place, best], chunk.plan(best)
    return times, plans


def test_every_design_is_judged_at_the_best_plan_of_brute_force():
    """Bounds and batches lose nothing: times are those of pricing every plan, to the last bit."""
    judge = Judge(space())
    index = np.arange(judge.space.size)
    verdicts = judge(index)
    times, plans = brute_force(judge, index)
    allowed = np.isfinite(verdicts.step_time_s[:, 0])
    assert allowed.sum() > 20
    np.testing.assert_array_equal(verdicts.step_time_s[allowed, 0], times[allowed])
    for row in np.flatnonzero(allowed):
        assert plan_of(verdicts.plans[row, 0]) == plans[row]
