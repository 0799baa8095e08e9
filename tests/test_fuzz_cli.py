"""Mutated files and flags: never a traceback, never exit 0 with nonsense.

Everything runs in this process, where a warning of numpy is an error too. What exits 0 must be a
result that adds up; what exits 1 or 2 must say so in one line, and in one JSON object.
"""

import contextlib
import io
import json
import math
import re

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from search.cli import main

CONFIG = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "sliding_window": None,
}

NODE = """\
kind: node
name: FuzzNode
source: made up for a test
chip: ./chip.yaml
chips_per_node: 4
levels:
  - name: inside
    kind: switch
    technology: nvlink3
    size: 4
    rate: "100 GB/s"
  - name: outside
    technology: infiniband
    nics_per_node: 4
    nic_rate: "200 Gb/s"
"""

CHIP = """\
kind: chip
name: FuzzChip
source: made up for a test
peak:
  bf16: "100 TFLOP/s"
  fp32: "10 TFLOP/s"
memory: "40 GiB"
memory_rate: "1 TB/s"
links:
  scaleup: "100 GB/s"
  scaleout: "25 GB/s"
"""

NASTY = [
    "0", "-1", "1e9", "1e400", ".inf", ".nan", "NO", "~", "''", "[]", "{}", "[[[[]]]]", "&a 1",
    "*a", "!!python/object:os.system x", "8", "3", "99999999999999999999", '"80 GB/s"', '"0 GiB"',
    '"1e30 TB/s"', '"-5 GiB"', '"5"', "true", "\t", "\x07", "é", '"4 GiB', "<<: *x", "0x10", "010",
]  # fmt: skip

FLAGS = [
    "--tp", "--pp", "--dp", "--cp", "--ep", "--etp", "--vpp", "--micro-batch-size",
    "--global-batch-size", "--zero", "--recompute", "--schedule", "--mesh-order", "--optimizer",
    "--grad-dtype", "--master-dtype", "--first-stage-layers", "--last-stage-layers",
    "--sequence-parallel", "--no-sequence-parallel", "--chips", "--seq-length", "--precision",
    "--stack", "--flop-convention", "--json", "--quiet", "--force", "--fix", "--allow", "--top",
    "--space", "--headroom", "--max-tp-span", "--megatron", "--megatron-args", "--help", "--",
    "-o", "--tpp", "-x", "",
]  # fmt: skip

VALUES = [
    "1", "2", "4", "8", "16", "0", "-1", "3.5", "1e3", "full", "selective", "none", "gpipe",
    "interleaved", "tp=2", "tp=2,4", "zero=0", "recompute=full", "pp=9", "vpp=2", "=", "compact",
    "bf16", "fp8", "fp32", "adam", "adam-8bit", "6GiB", "-1GiB", "node", "causal", "-", "NO",
    "999999999999", "½", "\ud800", "tp-cp-pp-dp", "fsdp2", "model.json",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model and a node in it; files that runs leave there are overwritten."""
    path = tmp_path_factory.mktemp("fuzz")
    (path / "model.json").write_text(json.dumps(CONFIG))
    (path / "node.yaml").write_text(NODE)
    (path / "chip.yaml").write_text(CHIP)
    return path


def run(folder, *arguments):
    """Exit code and stdout of one command, run with `--json` in `folder`."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(list(arguments))
    assert code in (0, 1, 2)
    assert "Traceback" not in err.getvalue()
    if code:
        lines = [line for line in err.getvalue().split("\n") if line.startswith("dse: ")]
        assert len(lines) == 1
        assert len(lines[0]) > len("dse: x")
    return code, out.getvalue()


def sound(report):
    """A report of a step that could be: finite, positive, adding up."""
    parts = report["parts_s"]
    named = [parts["compute"], *parts["exposed_comm"].values()]
    named += [parts["bubble"], parts["optimizer"], parts["host"]]
    assert all(math.isfinite(value) and value >= 0 for value in named)
    assert math.fsum(named) == pytest.approx(report["step_time_s"], rel=1e-12)
    assert report["step_time_s"] > 0
    assert 0 < report["mfu"] <= 1
    for stage in report["memory_bytes"]:
        assert 0 < stage["total"] <= stage["capacity"] - stage["reserve"]
    plan = report["plan"]
    assert plan["tp"] * plan["pp"] * plan["cp"] * plan["dp"] == report["chips"]
    per_step = plan["num_microbatches"] * plan["micro_batch_size"] * plan["dp"]
    assert per_step == plan["global_batch_size"]


def check(code, out):
    """Whatever was printed under --json is one object that fits the exit code."""
    data = json.loads(out)
    if code == 2:
        assert data["error"]["message"]
    elif code == 1:
        assert data["infeasible"]["reason"]
    elif "best" in data:
        assert data["enumerated"] == data["evaluated"] + sum(data["discarded"].values())
        for report in data["best"]:
            sound(report)
    elif "step_time_s" in data:
        sound(data)


EVALUATE = ("evaluate", "model.json", "node.yaml", "--chips", "8", "--global-batch-size", "16")


@st.composite
def mutated(draw, text):
    """A text with one to three of its parts replaced, repeated, dropped or cut off."""
    for _ in range(draw(st.integers(1, 3))):
        tokens = re.findall(r"\w[\w.]*|\s+|.", text)
        place = draw(st.integers(0, max(0, len(tokens) - 1)))
        how = draw(st.sampled_from(["replace", "drop", "repeat line", "drop line", "cut", "swap"]))
        lines = text.split("\n")
        line = draw(st.integers(0, len(lines) - 1))
        if how == "replace":
            tokens[place : place + 1] = [draw(st.sampled_from(NASTY))]
            text = "".join(tokens)
        elif how == "drop":
            text = "".join(tokens[:place] + tokens[place + 1 :])
        elif how == "repeat line":
            text = "\n".join(lines[: line + 1] + lines[line:])
        elif how == "drop line":
            text = "\n".join(lines[:line] + lines[line + 1 :])
        elif how == "cut":
            text = "".join(tokens[:place])
        else:
            other = draw(st.integers(0, max(0, len(tokens) - 1)))
            if tokens:
                tokens[place], tokens[other] = tokens[other], tokens[place]
            text = "".join(tokens)
    return text


SLOW = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def test_the_unmutated_inputs_are_sound(folder):
    """The starting point of all mutations runs."""
    code, out = run(folder, *EVALUATE, "--tp", "2", "--json")
    assert code == 0
    sound(json.loads(out))


@SLOW
@given(mutated(NODE) | mutated(CHIP))
@example(NODE.replace("kind: node", "kind: 1e400"))
def test_mutated_yaml(folder, text):
    """A cluster or chip file with anything wrong in it is refused, or still means a machine."""
    (folder / "fuzz.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    arguments = [part if part != "node.yaml" else "fuzz.yaml" for part in EVALUATE]
    check(*run(folder, *arguments, "--tp", "2", "--json"))


@SLOW
@given(mutated(json.dumps(CONFIG, indent=1)))
def test_mutated_json(folder, text):
    """A model file with anything wrong in it is refused, or still means a model."""
    (folder / "fuzz.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    arguments = [part if part != "model.json" else "fuzz.json" for part in EVALUATE]
    check(*run(folder, *arguments, "--tp", "2", "--json"))


@SLOW
@given(st.binary(max_size=200))
def test_files_of_random_bytes(folder, data):
    """No bytes make a reader fail in another way than by an error of its own."""
    (folder / "fuzz.json").write_bytes(data)
    (folder / "fuzz.yaml").write_bytes(data)
    check(*run(folder, "show", "model", "./fuzz.json", "--json"))
    check(*run(folder, "show", "node", "./fuzz.yaml", "--json"))
    check(*run(folder, "compare", "fuzz.json", "fuzz.json", "--json"))


WORDS = st.sampled_from(FLAGS) | st.sampled_from(VALUES)


@SLOW
@given(st.lists(WORDS, max_size=8), st.sampled_from(["evaluate", "plan", "show", "compare"]))
@example(["--tp", "2", "--recompute", "full"], "evaluate")
@example(["--fix", "tp=2", "--top", "1"], "plan")
def test_mutated_flags(folder, words, command):
    """Any flags in any order: refused, infeasible, or a sound result."""
    if command in ("evaluate", "plan"):
        base = [command, "model.json", "node.yaml"]
        words = ["--global-batch-size", "16", "--chips", "8", *words]
    elif command == "show":
        base = [command, "chip"]
    else:
        base = [command, "model.json", "model.json"]
    if "-o" in words or any(word.startswith("--out") for word in words):
        words = [word for word in words if word != "-o"]
    code, out = run(folder, *base, *words, "--json")
    if code == 0 and ("--help" in words or "--" in words):
        return
    check(code, out)


@settings(SLOW, max_examples=25)
@given(mutated("saved"))
@example("saved")
def test_mutated_results(folder, text):
    """A saved result with anything wrong in it is refused by compare, or recomputed."""
    saved = folder / "saved.json"
    if not saved.exists():
        run(folder, *EVALUATE, "--tp", "2", "--quiet", "-o", "saved.json")
    content = saved.read_text()
    head = content.find('"plan"')
    kept = content[:300] + text + content[head:]
    (folder / "fuzzed.json").write_bytes(kept.encode("utf-8", "surrogatepass"))
    check(*run(folder, "compare", "saved.json", "fuzzed.json", "--json"))
