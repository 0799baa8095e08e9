"""Studies: spaces as files, samplers, what is kept and how it goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hwmodels.errors import ConfigError
from hwmodels.sourced import document
from search.hardware import explore
from search.judge import Judge, Verdicts
from search.samplers import SAMPLERS, Choice, choose, spread_designs
from search.space_file import read_space
from search.storage import Ledger, whole_batches
from search.study import NotKept, StudyLoop, known_designs, values_of
from search.study_space import StudySpace

ROOT = Path(__file__).parent.parent
SPACE = """
kind: space
models:
  - {model: gpt3-1.3b, global_batch_size: 64, seq_length: 2048}
chips: 16
template:
  node_nm: 5
  clock: {low: "0.8 GHz", high: "1.2 GHz", step: "0.1 GHz"}
  cores: [2, 4, 6, 8]
  arrays_per_core: [2, 4]
  rows: 128
  cols: [64, 128]
  lanes_per_core: 1024
  special_per_cycle_per_core: 256
  scratchpad_per_core: "8 MiB"
  memory: [hbm2e, hbm3]
  memory_stacks: [1, 2]
network:
  scaleup: ["100 GB/s", "200 GB/s", "400 GB/s"]
  nic: "200 Gb/s"
  scaleup_size: [4, 8]
  topology: [switch, torus-2d]
constraints:
  tdp: "400 W"
objectives: [throughput]
"""


def space_of(text: str = SPACE) -> StudySpace:
    return read_space(document(text, "small.yaml", ("space",)))


@pytest.fixture(scope="module")
def known() -> tuple[StudySpace, Verdicts]:
    """A space with every design judged once, so that loops over it cost nothing."""
    space = space_of()
    return space, Judge(space)(np.arange(space.size))


def run(known, sampler: str, trials: int, keeper=None, seed: int = 0, stop=None):
    space, verdicts = known
    loop = StudyLoop(
        space, Choice(sampler, "", trials), keeper or NotKept(), verdicts.take, seed=seed
    )
    return loop.run(stop=stop)


def ledger(path: Path, space: StudySpace, **options) -> Ledger:
    identity = {"space": space.canonical(), "seed": 0}
    directions = ["maximize"] * len(space.objectives)
    return Ledger(str(path), "s", directions, identity, **options)


# Samplers --------------------------------------------------------------------------------------


def test_the_sampler_follows_from_space_and_budget() -> None:
    """Enumeration where the budget covers the space, else by objectives, axes and budget."""
    space = space_of()
    two = space_of(SPACE.replace("[throughput]", "[throughput, throughput_per_usd]"))
    words = space_of(
        SPACE.replace('{low: "0.8 GHz", high: "1.2 GHz", step: "0.1 GHz"}', '"1 GHz"')
        .replace("[2, 4, 6, 8]", "4")
        .replace("arrays_per_core: [2, 4]", "arrays_per_core: 4")
        .replace("cols: [64, 128]", "cols: 128")
        .replace("memory_stacks: [1, 2]", "memory_stacks: 2")
        .replace("scaleup_size: [4, 8]", "scaleup_size: 8")
    )
    assert choose(space, space.size, None).name == "enumeration"
    assert choose(space, 100, None).name == "cmaes"
    assert choose(space, 1_500, None).name == "nsga2"
    assert choose(two, 100, None).name == "nsga2"
    assert choose(words, 4, None).name == "tpe"
    assert choose(space, 100, "random").why == "asked for"


@pytest.mark.parametrize("sampler", [s for s in SAMPLERS if s != "gp"])
def test_each_design_is_judged_once(known, sampler: str) -> None:
    """Whatever the sampler repeats, the evaluator meets a design once, and the budget counts
    designs."""
    space, verdicts = known
    met: list[int] = []

    def judge(index):
        met.extend(index.tolist())
        return verdicts.take(index)

    loop = StudyLoop(space, Choice(sampler, "", 150), NotKept(), judge, seed=3)
    outcome = loop.run()
    assert len(met) == len(set(met)) == outcome.judged == len(outcome.verdicts)
    assert outcome.judged == 150 or sampler in ("random", "qmc")
    assert outcome.trials >= outcome.judged


@pytest.mark.parametrize("sampler", [s for s in SAMPLERS if s != "gp"])
def test_an_interrupted_study_goes_on_as_if_undisturbed(known, sampler: str, tmp_path) -> None:
    """Stopped after every batch and opened again, a study draws the same designs in the same
    order."""
    space, _ = known
    whole = run(known, sampler, 120)
    pieces = None
    for _ in range(40):
        kept = ledger(tmp_path / "s.journal", space)
        asked = iter([False])
        pieces = run(known, sampler, 120, kept, stop=lambda asked=asked: next(asked, True))
        kept.close()
        if not pieces.interrupted:
            break
    assert pieces is not None
    np.testing.assert_array_equal(pieces.verdicts.index, whole.verdicts.index)
    assert pieces.history == whole.history
    assert pieces.trials == whole.trials


def test_a_larger_budget_begins_with_the_same_designs(known) -> None:
    """So that it can never end at a lower optimum."""
    for sampler in ("cmaes", "nsga2", "tpe", "qmc", "random"):
        small, large = run(known, sampler, 60), run(known, sampler, 110)
        np.testing.assert_array_equal(
            small.verdicts.index, large.verdicts.index[: len(small.verdicts)]
        )
        assert large.history[-1][1] >= small.history[-1][1]


def test_the_default_sampler_comes_near_the_optimum_in_few_trials(known) -> None:
    """Within 2 % of the best of all designs after 5 % of them, at the median of five seeds."""
    space, verdicts = known
    best = values_of(space, verdicts)[verdicts.feasible].max()
    budget = space.size // 20
    chosen = choose(space, budget, None)
    gaps = [
        1.0 - run(known, chosen.name, budget, seed=seed).history[-1][1] / best for seed in range(5)
    ]
    assert np.median(gaps) < 0.02


def test_known_designs_are_met_first(known) -> None:
    """Designs of `start:` are snapped to the space and open the study."""
    space = space_of(SPACE + 'start:\n  - GH100\n  - {cores: 6, clock: "1.1 GHz"}\n')
    verdicts = known[1]
    wanted = known_designs(space)
    assert len(wanted) == 2
    assert space.described(wanted[1])["cores"] == 6.0
    for sampler in ("cmaes", "qmc", "enumeration"):
        outcome = StudyLoop(space, Choice(sampler, "", 40), NotKept(), verdicts.take, seed=0).run()
        assert outcome.verdicts.index[:2].tolist() == wanted


def test_enumeration_looks_at_every_design_once_and_finds_the_best(known) -> None:
    """The optimum of an enumerated space is that of all its designs."""
    space, verdicts = known
    outcome = run(known, "enumeration", space.size)
    assert sorted(outcome.verdicts.index.tolist()) == list(range(space.size))
    best = values_of(space, verdicts)[verdicts.feasible].max()
    assert outcome.history[-1][1] == best


def test_spread_designs_do_not_depend_on_how_they_are_drawn() -> None:
    """A sequence read in pieces is the sequence."""
    space = space_of()
    for name in ("random", "qmc"):
        whole = spread_designs(space, name, 5, 0, 40)
        assert spread_designs(space, name, 5, 0, 15) + spread_designs(space, name, 5, 15, 25) == (
            whole
        )
        assert min(whole) >= 0
        assert max(whole) < space.size


# What is kept ----------------------------------------------------------------------------------


def test_a_journal_cut_anywhere_loses_at_most_the_running_batch(known, tmp_path) -> None:
    """Every prefix of the file opens; it holds the whole batches before the cut."""
    space, _ = known
    path = tmp_path / "s.journal"
    kept = ledger(path, space)
    whole = run(known, "nsga2", 260, kept)
    kept.close()
    raw = path.read_bytes()
    ends = [
        place + 1
        for place in range(len(raw))
        if raw[place : place + 1] == b"\n" and b"dse:batches" in raw[:place].rsplit(b"\n", 1)[-1]
    ]
    assert len(ends) >= 3
    rng = np.random.default_rng(0)
    for cut in [*rng.integers(1, len(raw), 12).tolist(), len(raw) - 1, ends[1], ends[1] + 1]:
        path.write_bytes(raw[:cut])
        again = ledger(path, space)
        batches = sum(end <= cut for end in ends) - 1
        assert again.batches == max(batches, 0)
        outcome = run(known, "nsga2", 260, again)
        again.close()
        np.testing.assert_array_equal(outcome.verdicts.index, whole.verdicts.index)


def test_whole_batches_refuses_what_is_no_study(tmp_path) -> None:
    """Another file is not overwritten, and the way out is named."""
    for raw in (b"hello\n", b"\x00\x01", b"kind: space\n"):
        with pytest.raises(ConfigError, match="no journal") as caught:
            whole_batches(raw, "f")
        assert "--force" in str(caught.value)
    with pytest.raises(ConfigError, match="damaged"):
        whole_batches(b'{"op_code":0}\nnot json\n{"op_code":0}\n', "f")


def test_a_foreign_optuna_journal_is_refused(tmp_path) -> None:
    """A journal that another program wrote stays as it is."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    path = tmp_path / "s.journal"
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    study = optuna.create_study(storage=storage, study_name="s")
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="did not write"):
        ledger(path, space_of())
    assert path.read_bytes() == before


def test_another_space_or_seed_is_refused_by_its_first_field(known, tmp_path) -> None:
    """Resuming names what differs."""
    space, _ = known
    path = tmp_path / "s.journal"
    kept = ledger(path, space)
    run(known, "qmc", 10, kept)
    kept.close()
    other = space_of(SPACE.replace("cores: [2, 4, 6, 8]", "cores: [2, 4, 6]"))
    with pytest.raises(ConfigError) as caught:
        ledger(path, other)
    assert caught.value.field == "space.axes.cores"
    with pytest.raises(ConfigError) as caught:
        Ledger(str(path), "s", ["maximize"], {"space": space.canonical(), "seed": 1})
    assert caught.value.field == "seed"
    fresh = ledger(path, other, restart=True)
    assert fresh.batches == 0
    fresh.close()


def test_two_runs_do_not_write_one_journal(known, tmp_path) -> None:
    """The second is told, not queued."""
    first = ledger(tmp_path / "s.journal", known[0])
    with pytest.raises(ConfigError, match="another run"):
        ledger(tmp_path / "s.journal", known[0])
    first.close()


def test_a_database_keeps_a_study_too(known, tmp_path) -> None:
    """The same trials by URL; an unfinished batch left there is not written twice."""
    space, _ = known
    url = f"sqlite:///{tmp_path / 's.db'}"
    whole = run(known, "nsga2", 120)
    kept = Ledger(url, "s", ["maximize"], {"space": space.canonical(), "seed": 0})
    asked = iter([False])
    run(known, "nsga2", 120, kept, stop=lambda: next(asked, True))
    again = Ledger(url, "s", ["maximize"], {"space": space.canonical(), "seed": 0})
    # As if the process had died after three trials of the second batch.
    resumed = run(known, "nsga2", 120, again)
    np.testing.assert_array_equal(resumed.verdicts.index, whole.verdicts.index)
    last = Ledger(url, "s", ["maximize"], {"space": space.canonical(), "seed": 0})
    assert len(last.trials) == whole.trials


def test_trials_are_optuna_trials_with_constraints(known, tmp_path) -> None:
    """Optuna reads the journal; constraints stand as Optuna's and as user attributes."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    space, verdicts = known
    path = tmp_path / "s.journal"
    for sampler in ("cmaes", "enumeration"):
        kept = ledger(path, space, restart=True)
        run(known, sampler, 30, kept)
        kept.close()
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
        study = optuna.load_study(study_name="s", storage=storage)
        for trial in study.trials:
            record = trial.user_attrs["record"]
            row = int(np.flatnonzero(verdicts.index == record["design"])[0])
            assert trial.user_attrs["constraint:tdp"] == verdicts.excess["tdp"][row]
            assert trial.constraints["tdp"] == verdicts.excess["tdp"][row]


# The command ------------------------------------------------------------------------------------


def command(*words: str, cwd: Path, **options) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "search.cli", "search", "run", *words],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def wait_for_batches(path: Path, count: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and path.read_bytes().count(b"dse:batches") > count:
            return
        time.sleep(0.02)
    raise AssertionError(f"no batch {count}: {process.communicate()}")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_or_interrupted_run_goes_on_to_the_same_end(number, tmp_path) -> None:
    """kill -9 and Ctrl-C lose at most the running batch; the same command finishes the study."""
    (tmp_path / "s.yaml").write_text(SPACE)
    words = ("s.yaml", "--trials", "96", "--sampler", "tpe", "--workers", "1", "--json")
    process = command(*words, cwd=tmp_path)
    wait_for_batches(tmp_path / "s.journal", 1, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "go on with: dse search run s.yaml" in errors
    again = command(*words, cwd=tmp_path)
    text, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    resumed = json.loads(text)
    undisturbed = explore(tmp_path / "s.yaml", trials=96, sampler="tpe", full_plans=True)
    assert resumed["judged"] < 96
    assert resumed["unique"] == undisturbed.unique
    assert resumed["best"]["values"] == undisturbed.best.values
    assert resumed["history"] == [point.model_dump() for point in undisturbed.history]


def test_workers_change_nothing_but_time(tmp_path) -> None:
    """A pool of two judges says what one says."""
    (tmp_path / "s.yaml").write_text(SPACE)
    one = command("s.yaml", "--trials", "64", "--json", "--workers", "1", cwd=tmp_path)
    first = json.loads(one.communicate(timeout=300)[0])
    two = command("s.yaml", "--trials", "64", "--json", "--workers", "2", "--force", cwd=tmp_path)
    second = json.loads(two.communicate(timeout=300)[0])
    for key in ("best", "front", "history", "infeasible", "designs_evaluated"):
        assert first[key] == second[key]


def test_the_dump_lists_every_design(tmp_path) -> None:
    """CSV and JSON hold one row a design, infeasible ones with what they broke."""
    import csv

    result = explore(space_of(), trials=40)
    from search.report_front import write_designs

    write_designs(result, str(tmp_path / "d.csv"))
    write_designs(result, str(tmp_path / "d.json"))
    with (tmp_path / "d.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    listed = json.loads((tmp_path / "d.json").read_text())
    assert len(rows) == len(listed) == result.unique
    assert [int(row["design"]) for row in rows] == [row["design"] for row in listed]
    for row in listed:
        assert row["feasible"] == (row["broken"] is None)
        assert (row["throughput"] is not None) == row["feasible"]
        assert row["tdp_w_low"] <= row["tdp_w"] <= row["tdp_w_high"]


# The schema -------------------------------------------------------------------------------------


def _schema() -> dict:
    import hwmodels

    path = Path(hwmodels.__file__).parent / "schemas" / "space.schema.json"
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_schema_knows_the_keys_and_words_of_the_reader() -> None:
    """Schema and reader accept and require the same."""
    from hwmodels.accelerator.design import MEMORIES
    from hwmodels.catalog.rules import technologies
    from search import study_space
    from search.economics import ECONOMICS_KEYS
    from search.study_space import CAPS, OBJECTIVES

    schema = _schema()
    parts = schema["properties"]
    provenance = {"source", "date", "status"}
    assert set(parts) == set(study_space.TOP_KEYS)
    assert set(parts["template"]["properties"]) == {*study_space.TEMPLATE_KEYS, *provenance}
    assert set(parts["template"]["required"]) == set(study_space.TEMPLATE_KEYS) - set(
        study_space.TEMPLATE_OPTIONAL
    )
    assert set(parts["network"]["properties"]) == {*study_space.NETWORK_KEYS, *provenance}
    assert set(parts["constraints"]["properties"]) == {*CAPS, "deadline", *provenance}
    assert set(parts["economics"]["properties"]) == {*ECONOMICS_KEYS, *provenance}
    assert tuple(parts["objectives"]["items"]["enum"]) == OBJECTIVES
    assert parts["template"]["properties"]["memory"]["oneOf"][0]["enum"] == list(MEMORIES)
    assert parts["network"]["properties"]["scaleup_technology"]["enum"] == list(technologies())


def test_the_schema_takes_the_units_of_the_parser() -> None:
    """Every unit of a dimension passes, a bare number does not."""
    import re

    from hwmodels.units import UNITS

    for name, entry in _schema()["$defs"].items():
        dimension = name.removesuffix("_axis")
        if dimension not in UNITS:
            continue
        pattern = entry["oneOf"][0]["pattern"]
        assert all(re.search(pattern, f"1.5 {unit}") for unit in UNITS[dimension])
        assert not re.search(pattern, "200")


# Drawings and the other command ------------------------------------------------------------------


def test_a_drawing_that_cannot_be_made_is_refused_before_the_search(tmp_path) -> None:
    """The kind of file is checked at the door."""
    from search.report_front import check_plot

    with pytest.raises(ConfigError) as caught:
        check_plot(str(tmp_path / "front.gif"))
    assert caught.value.allowed == [".svg", ".png", ".pdf"]


@pytest.mark.parametrize("objectives", ["[throughput]", "[throughput, energy_per_token]"])
def test_the_front_is_drawn(objectives: str, tmp_path) -> None:
    """SVG and PNG of one objective against money, and of two against one another."""
    pytest.importorskip("matplotlib")
    from search.report_front import plot_front

    text = SPACE.replace("[throughput]", objectives) + "compare: [dgx-h100]\n"
    result = explore(space_of(text), trials=20, full_plans=False)
    for kind, start in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        path = tmp_path / f"front{kind}"
        plot_front(result, str(path))
        assert path.read_bytes().startswith(start)


def test_sensitivity_prints_elasticities_of_a_plan(capsys) -> None:
    """By the best plan, by a given plan, and replanned; a misuse is refused by its flag."""
    from search.cli import main

    job = ["sensitivity", "gpt3-1.3b", "dgx-h100", "--chips", "16", "--global-batch-size", "64"]
    assert main([*job, "--json"]) == 0
    best = json.loads(capsys.readouterr().out)
    assert best["elasticities"]["peak_flop_per_s"] < 0
    assert best["levels"]["level.0"].startswith("nvlink")
    assert -1.01 < best["sum_of_rates"] < 0
    assert main([*job, "--tp", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["tp"] == 8
    assert main([*job, "--replan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan_of_each_row"] == "best"
    assert main([*job, "--replan", "--tp", "8"]) == 2
    assert main(job[:-2]) == 2
    assert "--global-batch-size" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("missing.yaml",), 2, "cannot be read"),
        (("s.yaml", "--sampler", "magic"), 2, "no sampler is called 'magic'"),
        (("s.yaml", "--workers", "0"), 2, "zero is not allowed"),
        (("s.yaml", "--trials", "0"), 2, "zero is not allowed"),
        (("s.yaml", "--dump", "d.txt"), 2, "neither .csv nor .json"),
        (("s.yaml", "--plot", "front.gif"), 2, "cannot draw"),
        (("s.yaml", "--study", "../up"), 2, "not a name"),
        (("s.yaml", "--storage", "none/s.journal"), 2, "folder does not exist"),
        (("s.yaml", "--storage", "nosuch://x"), 2, "cannot open the storage"),
    ],
)
def test_misuse_is_refused_by_one_line(words, code, said, tmp_path, monkeypatch, capsys) -> None:
    """Exit code 2 and what is wrong; nothing is left behind."""
    from search.cli import main

    (tmp_path / "s.yaml").write_text(SPACE)
    monkeypatch.chdir(tmp_path)
    assert main(["search", "run", *words]) == code
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]
