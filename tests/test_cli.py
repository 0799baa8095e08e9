"""The command line as a process: results, exit codes, and what bad input gets told."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import search
from dse.plan import Plan
from search.cli import main

ROOT = Path(search.__file__).parents[1]

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}

NODE = """\
kind: node
name: TestNode
source: made up for a test
chip: h100-sxm5-80gb
chips_per_node: 8
levels:
  - name: nvlink
    kind: switch
    technology: nvlink4
    size: 8
    rate: "450 GB/s"
  - name: infiniband
    technology: infiniband
    nics_per_node: 8
    nic_rate: "400 Gb/s"
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder with a model and a node file in it, as the current one."""
    (tmp_path / "model.json").write_text(json.dumps(CONFIG))
    (tmp_path / "node.yaml").write_text(NODE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def process(*arguments, **environment):
    """Run `dse` as a process of its own; never with a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "search.cli", *arguments],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        timeout=120,
        check=False,
    )
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    assert "Traceback" not in done.stderr
    return done


EVALUATE = ("evaluate", "model.json", "node.yaml", "--chips", "16", "--global-batch-size", "32")
PLAN = ("plan", "model.json", "node.yaml", "--chips", "16", "--global-batch-size", "32")
GPT3 = ("gpt3-175b", "dgx-a100-80gb")

BAD = {
    "no command of that name": (("plam",), "did you mean plan?"),
    "misspelt flag": ((*PLAN, "--spce", "full"), "did you mean --space?"),
    "misspelt required flag": (
        ("plan", *GPT3, "--global-batch-sise", "8"),
        "did you mean --global-batch-size?",
    ),
    "flag without its value": ((*PLAN, "--fix"), "--fix needs a value"),
    "flag given twice": ((*EVALUATE, "--tp", "8", "--tp", "4"), "--tp is given twice"),
    "one argument too many": ((*PLAN, "third"), "one argument too many"),
    "model missing": (("plan",), "MODEL needs a value"),
    "fraction for a count": ((*EVALUATE, "--tp", "7.6"), "not a whole number"),
    "exponent for a count": ((*EVALUATE, "--micro-batch-size", "1e3"), "not a whole number"),
    "negative count": ((*EVALUATE, "--tp", "-2"), "not a whole number"),
    "zero degree": ((*EVALUATE, "--tp", "0"), "an integer from 1"),
    "unknown model": (("plan", "lama-3-70b", "dgx-h100", "--global-batch-size", "8"), "llama-3"),
    "unknown node": (("plan", "model.json", "dgx-h1000", "--global-batch-size", "8"), "dgx-h100"),
    "unknown stack": ((*EVALUATE, "--stack", "megatron-cor"), "did you mean 'megatron-core'?"),
    "unknown precision": ((*EVALUATE, "--precision", "bf61"), "bf16"),
    "unknown convention": ((*EVALUATE, "--flop-convention", "half"), "causal"),
    "unknown kind": (("show", "chipp"), "did you mean chip?"),
    "unknown space": ((*PLAN, "--space", "huge"), "compact, full"),
    "unknown axis": ((*PLAN, "--fix", "tpp=8"), "did you mean 'tp'?"),
    "impossible value": ((*PLAN, "--fix", "zero=4"), "0, 1, 2, 3"),
    "malformed narrowing": ((*PLAN, "--allow", "tp"), "AXIS=VALUE"),
    "contradictory narrowing": ((*PLAN, "--fix", "tp=8", "--allow", "tp=2,4"), "contradict"),
    "contradictory span": ((*PLAN, "--fix", "tp=16", "--max-tp-span", "node"), "contradict"),
    "unknown span": ((*PLAN, "--max-tp-span", "rack"), "node"),
    "unit missing in a flag": ((*PLAN, "--headroom", "6"), "has no unit"),
    "unit wrong in a flag": ((*PLAN, "--headroom", "6 GB/s"), "--headroom"),
    "heads not divisible": ((*EVALUATE[:4], "24", *EVALUATE[5:], "--tp", "3"), "attention heads"),
    "degrees not multiplying to the chips": (
        (*EVALUATE, "--tp", "2", "--dp", "4"),
        "not the 16 chips",
    ),
    "degrees that do not divide the chips": ((*EVALUATE, "--tp", "32"), "does not divide 16"),
    "batch not divisible": ((*EVALUATE, "--micro-batch-size", "3"), "not a multiple"),
    "batch missing": (EVALUATE[:-2], "global_batch_size"),
    "ep without experts": ((*EVALUATE, "--ep", "2"), "a model with experts"),
    "chips that make no cluster": ((*EVALUATE[:4], "13", *EVALUATE[5:]), "13"),
    "no such file": (("plan", "absent.json", "node.yaml", "--global-batch-size", "8"), "absent"),
    "arguments of another tool": ((*EVALUATE, "--megatron-args", "model.json"), "Megatron-LM"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_flags_are_told(here, capsys, case):
    """Exit 2, one line on stderr that says what is wrong, nothing on stdout."""
    arguments, text = BAD[case]
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("dse: ")
    assert text in err


@pytest.mark.parametrize(
    "case", ["misspelt flag", "heads not divisible", "unit missing in a flag"]
)
def test_bad_flags_are_told_in_json_too(here, case):
    """As a process, under --json: the same error as an object on stdout, exit 2."""
    arguments, text = BAD[case]
    done = process(*arguments, "--json")
    error = json.loads(done.stdout)["error"]
    assert done.returncode == 2
    assert error.keys() == {
        "type", "message", "file", "line", "field", "value", "allowed", "hint"
    }  # fmt: skip
    assert text in error["message"]
    assert text in done.stderr
    assert error["field"]


BAD_NODES = {
    "misspelt key": (NODE.replace("technology: infiniband", "tecnology: infiniband"),
                     "did you mean", 13),
    "unit missing": (NODE.replace('"450 GB/s"', "450"), "no unit", 11),
    "unit wrong": (NODE.replace('"450 GB/s"', '"450 GiB"'), "GB/s", 11),
    "number in exponent form": (NODE.replace('"450 GB/s"', "1e9"), "no unit", 11),
    "word that is no number": (NODE.replace("size: 8", "size: NO"), "NO", 10),
    "duplicate key": (NODE + "chips_per_node: 4\n", "chips_per_node", 16),
    "anchor": (NODE.replace("chips_per_node: 8", "chips_per_node: &n 8"), "anchor", 5),
    "not YAML": ("kind: [node\nname: x", "", None),
    "not text": (b"\xff\xfe\x00\x01kind: node", "text", None),
    "ten megabytes": ("# " + "x" * 10_000_000, "", None),
    "empty": ("", "", None),
    "another kind": (NODE.replace("kind: node", "kind: stack"), "kind", 1),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_NODES)
def test_bad_cluster_files_are_told(here, capsys, case):
    """Exit 2 with the file and, where there is one, the line."""
    content, text, line = BAD_NODES[case]
    data = content if isinstance(content, bytes) else content.encode()
    (here / "node.yaml").write_bytes(data)
    began_s = time.perf_counter()
    assert main([*PLAN, "--json"]) == 2
    assert time.perf_counter() - began_s < 5
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert error["file"] == "node.yaml"
    assert error["line"] == line or line is None
    assert "node.yaml" in err
    assert text in err


def test_a_yaml_word_for_a_switch_is_not_guessed(here, capsys):
    """NO is a word in YAML 1.2: a stack file that says overlap: NO is refused, not read as
    false."""
    bundled = ROOT / "dse" / "stacks" / "megatron-core.yaml"
    text = bundled.read_text().replace("scatters_p2p: true", "scatters_p2p: NO")
    text = text.replace("scatters_p2p: false", "scatters_p2p: NO")
    assert "scatters_p2p: NO" in text
    (here / "stack.yaml").write_text(text)
    assert main([*EVALUATE, "--stack", "stack.yaml"]) == 2
    assert "scatters_p2p" in capsys.readouterr().err


BAD_MODELS = {
    "not JSON": ("{", "model.json"),
    "not an object": ("[1, 2]", "model.json"),
    "not text": (b"\xff\xfe{}", "text"),
    "unknown architecture": (json.dumps({**CONFIG, "model_type": "mamba"}), "mamba"),
    "heads that do not divide": (json.dumps({**CONFIG, "num_key_value_heads": 3}), "3"),
    "text for a number": (json.dumps({**CONFIG, "hidden_size": "wide"}), "hidden_size"),
    "number without end": (json.dumps({**CONFIG, "hidden_size": 10**400}), "hidden_size"),
    "not a number": (json.dumps({**CONFIG, "hidden_size": float("nan")}), "NaN"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_bad_model_files_are_told(here, capsys, case):
    """Exit 2 with the file's name and the key."""
    content, text = BAD_MODELS[case]
    data = content if isinstance(content, bytes) else content.encode()
    (here / "model.json").write_bytes(data)
    assert main([*EVALUATE, "--tp", "2"]) == 2
    err = capsys.readouterr().err
    assert "model.json" in err
    assert text in err


def test_a_model_too_large_says_by_how_much():
    """As a process: exit 1, needed and available memory in words and in JSON."""
    done = process("plan", *GPT3, "--chips", "8", "--global-batch-size", "8", "--json")
    body = json.loads(done.stdout)["infeasible"]
    assert done.returncode == 1
    assert "GiB a device" in done.stderr
    assert "nothing fits" in done.stderr
    assert body["needed_bytes_per_device"] > body["available_bytes_per_device"] > 70e9
    short = body["needed_bytes_per_device"] - body["available_bytes_per_device"]
    assert body["short_by_bytes"] == short
    assert body["stage"] == 0


def test_a_plan_too_large_says_by_how_much(capsys):
    """`evaluate` of one plan that does not fit: exit 1 likewise."""
    arguments = ("evaluate", *GPT3, "--chips", "8", "--global-batch-size", "8", "--tp", "8")
    assert main([*arguments, "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["infeasible"]["short_by_bytes"] > 0
    assert "GiB a device" in err


def test_an_empty_space_is_infeasible(here, capsys):
    """Well-formed narrowing that leaves no plan: exit 1, not 2."""
    assert main([*PLAN, "--fix", "tp=7"]) == 1
    assert "no plan" in capsys.readouterr().err
    assert main([*PLAN, "--headroom", "90GiB", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["infeasible"]["stage"] == 0


@pytest.mark.parametrize("flag", ["--all", "-o"])
def test_nothing_is_overwritten_without_force(here, capsys, flag):
    """A file that exists stays as it is, exit 2; --force replaces it."""
    target = here / "out.file"
    target.write_text("precious")
    assert main([*PLAN, flag, "out.file", "--quiet"]) == 2
    assert "--force overwrites it" in capsys.readouterr().err
    assert target.read_text() == "precious"
    assert main([*PLAN, flag, "out.file", "--quiet", "--force"]) == 0
    assert target.read_text() != "precious"
    assert [path.name for path in here.iterdir() if path.suffix == ".part"] == []


@pytest.mark.parametrize("path", ["absent/out.json", ".", "", "\0"])
def test_a_place_that_cannot_be_written_is_told_before_any_work(here, capsys, path):
    """No folder, a folder, no name: exit 2."""
    assert main([*PLAN, "-o", path]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_evaluate_prints_the_contract(here):
    """As a process: one JSON object with the promised keys; the parts add up to the step."""
    done = process(*EVALUATE, "--tp", "2", "--pp", "2", "--json")
    assert done.returncode == 0
    report = json.loads(done.stdout)
    for key in (
        "schema", "version", "calibration", "inputs_sha256", "seed", "warnings",
        "step_time_s", "interval_80_s", "parts_s", "memory_bytes", "params", "model_flop",
        "hardware_flop", "flop_convention", "mfu", "hfu", "tokens_per_s",
        "tokens_per_s_per_chip", "comm", "operators", "provenance_share", "stack",
        "bottleneck", "plan",
    ):  # fmt: skip
        assert key in report, key
    parts = report["parts_s"]
    total = parts["compute"]
    for name in ("tp", "cp", "ep", "pp", "dp"):
        total += parts["exposed_comm"][name]
    assert total + parts["bubble"] + parts["optimizer"] + parts["host"] == report["step_time_s"]
    assert report["plan"]["dp"] == 4
    assert report["plan"]["num_microbatches"] == 8
    assert report["plan"]["sequence_parallel"] is True
    assert len(report["memory_bytes"]) == 2


def test_plan_answers_first(here, capsys):
    """The best plan, what bounds it and whether it fits stand in the first three lines."""
    assert main(PLAN) == 0
    out = capsys.readouterr().out
    first, second, third = out.split("\n")[:3]
    assert first.startswith("tp ")
    assert "a step" in first
    assert second.startswith("Bound by ")
    assert third.startswith("Fits: stage ")
    assert "GiB free" in third
    assert "\x1b" not in out
    assert main([*PLAN, "--quiet"]) == 0
    assert capsys.readouterr() == (first + "\n", "")


def test_plan_counts_add_up_and_the_csv_proves_it(here, capsys):
    """--all holds every plan; the fastest that fits is the best, whatever was bounded away."""
    assert main([*PLAN, "--json", "--top", "5"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert main([*PLAN, "--json", "--top", "5", "--all", "all.csv"]) == 0
    whole = json.loads(capsys.readouterr().out)
    with open("all.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert result["enumerated"] == whole["enumerated"] == len(rows)
    for found in (result, whole):
        assert found["evaluated"] + sum(found["discarded"].values()) == len(rows)
    fitting = [row for row in rows if row["fits"] == "true"]
    assert whole["evaluated"] == len(fitting)
    assert all(row["step_time_s"] == "" for row in rows if row["fits"] == "false")
    times = sorted(float(row["step_time_s"]) for row in fitting)
    best = [entry["step_time_s"] for entry in result["best"]]
    assert best == pytest.approx(times[:5], rel=1e-12)
    # the front, by its definition
    front, least = [], float("inf")
    for memory, step in sorted(
        (float(row["peak_memory_bytes"]), float(row["step_time_s"])) for row in fitting
    ):
        if step < least:
            front.append((memory, step))
            least = step
    assert [(p["peak_memory_bytes"], p["step_time_s"]) for p in result["front"]] == front
    top = next(row for row in rows if row["step_time_s"] == repr(times[0]))
    plan = result["best"][0]["plan"]
    assert set(plan) <= set(top)
    for key, value in plan.items():
        assert top[key] == (str(value).lower() if isinstance(value, bool) else str(value)), key


def test_ties_are_the_listed_plans_within_the_structure_uncertainty(here, capsys):
    """ties[] holds exactly the best plans after the first that are at most that much slower."""
    assert (
        main(
            [
                *PLAN,
                "--json",
                "--allow",
                "zero=1",
                "--allow",
                "mesh_order=tp-cp-dp-pp",
                "--top",
                "60",
            ]
        )
        == 0
    )
    result = json.loads(capsys.readouterr().out)
    bar_s = result["best"][0]["step_time_s"] * (1 + result["tie_fraction"])
    tied = [entry for entry in result["best"][1:] if entry["step_time_s"] <= bar_s]
    assert [entry["plan"] for entry in result["ties"]] == [entry["plan"] for entry in tied]
    assert 0 < len(tied) < len(result["best"]) - 1


def test_megatron_arguments_out_and_in(here, capsys):
    """The line that `plan --megatron` prints prices the same plan under `evaluate`."""
    assert main([*PLAN, "--megatron", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    best = result["best"][result["megatron_plan"] - 1]
    (here / "args.txt").write_text(f"torchrun pretrain_gpt.py {result['megatron']} --lr 1e-4\n")
    arguments = ["evaluate", "model.json", "node.yaml", "--chips", "16"]
    assert main([*arguments, "--megatron-args", "args.txt", "--json"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["step_time_s"] == best["step_time_s"]
    assert "--lr" in err
    assert main([*arguments, "--megatron-args", "args.txt", "--zero", "3"]) == 2
    assert "zero" in capsys.readouterr().err


def test_megatron_arguments_may_bring_the_model(here, capsys):
    """With one positional argument it is the cluster; the batch defaults as Megatron's does."""
    (here / "args.txt").write_text(
        "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
        "--vocab-size 32000 --micro-batch-size 2 --tensor-model-parallel-size 2 --bf16 "
        "--use-distributed-optimizer"
    )
    arguments = ["evaluate", "node.yaml", "--chips", "16", "--megatron-args", "args.txt"]
    assert main([*arguments, "--json", "-o", "report.json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["plan"]["global_batch_size"] == 16  # 2 sequences a rank · dp 8
    assert report["plan"]["sequence_parallel"] is False
    assert report["seq_length"] == 1024
    assert main(["compare", "report.json", "report.json"]) == 0
    assert "equally fast" in capsys.readouterr().out


def test_compare_shows_every_term(here, capsys):
    """Differences of all terms add up to that of the steps; the changed fields are named."""
    assert main([*EVALUATE, "--tp", "2", "-o", "a.json", "--quiet"]) == 0
    assert main([*PLAN, "-o", "b.json", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["compare", "a.json", "b.json", "--json"]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert err == ""
    gap_s = data["b"]["step_time_s"] - data["a"]["step_time_s"]
    assert sum(term["delta_s"] for term in data["terms"]) == pytest.approx(gap_s, abs=1e-12)
    assert data["step_time_ratio"] == data["b"]["step_time_s"] / data["a"]["step_time_s"]
    assert len(data["terms"]) == 9
    assert data["changed"]
    assert all(first != second for first, second in data["changed"].values())
    assert main(["compare", "a.json", "b.json"]) == 0
    assert "B is faster" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "not JSON"),
        ("[]", "no JSON object"),
        ("{}", "plan"),
        ('{"a": NaN}', "NaN"),
        ("[" * 100_000, "not JSON"),
        ('{"best": []}', "best"),
        ('{"plan": {"tp": 1}, "model": 3}', "model"),
    ],
)
def test_compare_refuses_what_is_no_result(here, capsys, content, text):
    """Anything but a saved result is refused with the file's name."""
    (here / "bad.json").write_text(content)
    assert main(["compare", "bad.json", "bad.json"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("dse: bad.json")
    assert text in err


def test_compare_warns_where_the_saved_figure_is_no_longer_ours(here, capsys):
    """A result whose time or inputs do not recompute is compared as of now, and says so."""
    assert main([*EVALUATE, "-o", "a.json", "--quiet"]) == 0
    saved = json.loads(Path("a.json").read_text())
    saved["step_time_s"] *= 2
    Path("b.json").write_text(json.dumps(saved))
    assert main(["compare", "a.json", "b.json"]) == 0
    out, err = capsys.readouterr()
    assert "recomputed as" in err
    assert "equally fast" in out


@pytest.mark.parametrize("kind", ["chip", "node", "cluster", "model"])
def test_show_lists_and_describes(capsys, kind):
    """Without a name the known ones; each described with its sources."""
    assert main(["show", kind, "--json"]) == 0
    names = json.loads(capsys.readouterr().out)["names"]
    assert names == sorted(names)
    assert len(names) > 3
    assert main(["show", kind, names[0]]) == 0
    text = capsys.readouterr().out
    assert "source" in text
    assert main(["show", kind, names[0], "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["kind"] in (kind, "node")
    assert data["schema"]


def test_help_is_quick():
    """`dse --help` takes under 0.3 s, the best of five, as a process."""
    taken_s = []
    for _ in range(5):
        began_s = time.perf_counter()
        done = process("--help")
        taken_s.append(time.perf_counter() - began_s)
        assert done.returncode == 0
        assert "dse plan" in done.stdout
    assert min(taken_s) < 0.3


@pytest.mark.parametrize("command", ["show", "evaluate", "plan", "compare"])
def test_each_command_explains_itself(capsys, command):
    """`dse COMMAND --help` documents every flag it takes."""
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Usage: dse {command}" in out
    assert "--json" in out
    assert "--quiet" in out


def test_every_plan_field_has_a_flag(capsys):
    """What a plan can say, `evaluate` can be told."""
    assert main(["evaluate", "--help"]) == 0
    out = capsys.readouterr().out
    for field in Plan.model_fields:
        assert f"--{field.replace('_', '-')}" in out


def test_no_arguments_print_help(capsys):
    """`dse` alone explains itself, as `dse --help` does; --version prints a version."""
    assert main([]) == 0
    alone = capsys.readouterr().out
    assert main(["-h"]) == 0
    assert capsys.readouterr().out == alone
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip()[0].isdigit()


def test_a_reader_that_leaves_early_is_no_error(here):
    """Piped into a program that reads nothing, the command ends without complaint."""
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"{sys.executable} -m search.cli show model | true; echo ${{PIPESTATUS[0]}}",
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "0"
    assert done.stderr == ""


def test_interrupted(monkeypatch, capsys):
    """Ctrl-C: exit 130, nothing on stdout."""

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("search.cli.show._listed", interrupt)
    assert main(["show", "model"]) == 130
    assert capsys.readouterr().out == ""
