"""Megatron-LM argument lines in and out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.megatron import argument_line, arguments, read_arguments, read_file
from dse.plan import Plan
from dse.rules import Job
from dse.workload.config import TransformerConfig
from hwmodels.errors import ConfigError, DseError, UnsupportedError
from search.space import PlanSpace, named_space

pytestmark = pytest.mark.fast

GPT3 = (
    "--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 "
    "--max-position-embeddings 2048 --vocab-size 50257 --micro-batch-size 1 --bf16"
)


def model(experts=0):
    return TransformerConfig(
        name="small",
        family="llama",
        layers=8,
        hidden=512,
        ffn=2048,
        heads=8,
        kv_heads=4,
        vocab=1000,
        max_seq=512,
        gated=True,
        activation="silu",
        norm="rmsnorm",
        position="rotary",
        experts=experts,
        topk=2 if experts else 0,
        expert_ffn=1024 if experts else 0,
    )


def test_a_line_as_people_write_it():
    """Launcher, script, line breaks, `=` and comments are read; a plan and its job come out."""
    run = read_arguments(
        """
        torchrun --nproc_per_node 8 pretrain_gpt.py \\
          --tensor-model-parallel-size 8 --pipeline-model-parallel-size=4 \\
          --num-layers-per-virtual-pipeline-stage 1 --sequence-parallel  # as in the paper
          --num-layers 8 --micro-batch-size 2 --global-batch-size 512 --seq-length 512 \\
          --use-distributed-optimizer --recompute-granularity selective --bf16 --lr 1.5e-4
          --overlap-grad-reduce --data-path /some/where
        """,
        model(),
    )
    assert run.plan == {
        "tp": 8,
        "pp": 4,
        "cp": 1,
        "ep": 1,
        "etp": 1,
        "vpp": 2,  # 8 layers / (4 stages · 1 layer a chunk)
        "micro_batch_size": 2,
        "global_batch_size": 512,
        "sequence_parallel": True,
        "zero": 1,
        "recompute": "selective",
        "mesh_order": "tp-cp-dp-pp",
        "optimizer": "adam",
        "grad_dtype": "fp32",
        "first_stage_layers": 0,
        "last_stage_layers": 0,
    }
    assert (run.seq_length, run.precision) == (512, "bf16")
    assert any("--lr" in text and "ignored" in text for text in run.warnings)
    assert any("--overlap-grad-reduce" in text and "stack" in text for text in run.warnings)
    assert any("--data-path" in text for text in run.warnings)
    assert len(run.warnings) == 3


def test_defaults_are_those_of_megatron():
    """No flag: no sequence parallelism, a replicated optimizer, experts divided by tp."""
    run = read_arguments("--tensor-model-parallel-size 4 --micro-batch-size 1", model(experts=8))
    assert run.plan["sequence_parallel"] is False
    assert run.plan["zero"] == 0
    assert run.plan["etp"] == 4
    assert "global_batch_size" not in run.plan
    assert run.precision == "fp32"
    assert read_arguments("--sequence-parallel", model()).plan["sequence_parallel"] is False


def test_a_line_may_describe_the_model():
    """Shape flags make a model with Megatron's defaults: GPT-3 175B, ffn 4h, tied, dropout 0.1."""
    found = read_arguments(GPT3).model
    assert (found.layers, found.hidden, found.ffn, found.heads) == (96, 12288, 49152, 96)
    assert (found.kv_heads, found.vocab, found.position_rows) == (96, 50257, 2048)
    assert found.tied_embeddings
    assert found.qkv_bias
    assert found.dropout == 0.1
    assert not found.gated
    llama = read_arguments(
        GPT3 + " --swiglu --normalization RMSNorm --group-query-attention --num-query-groups 8 "
        "--position-embedding-type rope --disable-bias-linear --hidden-dropout 0 "
        "--untie-embeddings-and-output-weights --attention-dropout 0.0"
    ).model
    assert llama.gated
    assert llama.ffn == 32768  # 12288 · 8/3 = 32768, a multiple of 64 already
    assert (llama.kv_heads, llama.norm, llama.position) == (8, "rmsnorm", "rotary")
    assert not llama.tied_embeddings
    assert not llama.qkv_bias
    assert llama.dropout == 0.0
    moe = read_arguments(GPT3 + " --num-experts 8 --moe-router-topk 1 --moe-ffn-hidden-size 4096")
    assert (moe.model.experts, moe.model.topk, moe.model.expert_ffn) == (8, 1, 4096)


@pytest.mark.parametrize(
    "method", ["uniform --recompute-num-layers 1", "block --recompute-num-layers 4"]
)
def test_full_recomputation_of_every_layer(method):
    """One layer a checkpoint, or all layers of a stage one by one, is full recomputation."""
    full = f"--recompute-granularity full --recompute-method {method}"
    line = f"--pipeline-model-parallel-size 2 {full}"
    assert read_arguments(line, model()).plan["recompute"] == "full"


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
         "--recompute-method"),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 3",
         "--recompute-method"),
        ("--recompute-granularity selective --recompute-modules mlp", "--recompute-modules"),
        ("--cpu-offloading", "--cpu-offloading"),
        ("--multi-latent-attention", "--multi-latent-attention"),
        ("--use-torch-fsdp2", "--use-torch-fsdp2"),
        ("--optimizer muon", "--optimizer"),
        ("--cp-comm-type a2a", "--cp-comm-type"),
        ("--some-new-flag 3", "--some-new-flag"),
        ("--make-vocab-size-divisible-by 1", "--make-vocab-size-divisible-by"),
    ],
)  # fmt: skip
def test_what_changes_the_step_and_is_not_modelled_is_refused_by_name(line, field):
    """Never a quiet guess: the flag stands in the error."""
    with pytest.raises(UnsupportedError) as caught:
        read_arguments(line, model())
    assert caught.value.field == field
    assert field in str(caught.value)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--tensor-model-parallel-size 0", "integer from 1"),
        ("--tensor-model-parallel-size eight", "integer from 1"),
        ("--tensor-model-parallel-size 1e9", "integer from 1"),
        ("--tensor-model-parallel-size", "takes one value"),
        ("--tensor-model-parallel-size 4 2", "takes one value"),
        ("--sequence-parallel true", "takes no value"),
        ("--tensor-model-parallel-sise 8", "did you mean --tensor-model-parallel-size?"),
        ("--num-layers-per-virtual-pipeline-stage 3", "does not divide the 8 layers"),
        ("--num-layers 12", "not the 8 of small"),
        ("--tensor-model-parallel-size $TP", "shell variable"),
        ("--bf16 --fp16", "exclude"),
        ("--bf16 'oops", "malformed"),
        ("8 --bf16", "not a Megatron-LM flag"),
        ("", "no flags"),
        ("--data-parallel-sharding-strategy all", "optim_grads_params"),
        ("--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", "precision-aware"),
    ],
)
def test_a_wrong_line_is_refused(line, text):
    """Each mistake gets a message that says what was expected."""
    with pytest.raises(ConfigError) as caught:
        read_arguments(line, model())
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--hidden-size 64", "--num-attention-heads"),
        (GPT3.replace("--vocab-size 50257", ""), "--vocab-size"),
        (GPT3 + " --position-embedding-type relative", "learned_absolute"),
        (GPT3 + " --hidden-dropout 1.5", "number from 0"),
        (GPT3 + " --squared-relu", "--squared-relu"),
        (GPT3.replace("--num-attention-heads 96", "--num-attention-heads 7"), "7"),
    ],
)
def test_a_model_that_is_not_described_is_refused(line, text):
    """Missing or unknown parts of the shape are named."""
    with pytest.raises(ConfigError) as caught:
        read_arguments(line)
    assert text in str(caught.value)


def test_every_plan_that_megatron_can_run_survives_the_round_trip():
    """Line of a plan, read again: the same plan, over whole spaces, dense and with experts."""
    told = refused = refused_orders = 0
    for shape, chips in ((model(), 8), (model(experts=4), 4)):
        space = PlanSpace(named_space("full"), Job(shape, 256, chips), 8)
        for table in space.chunks():
            for row in range(0, len(table), 7):
                plan = table.plan(row)
                try:
                    line = argument_line(plan, shape, seq_length=256)
                except UnsupportedError:
                    refused += plan.schedule == "gpipe"
                    refused_orders += plan.schedule != "gpipe"
                    continue
                run = read_arguments(line, shape)
                again = Plan(**run.plan).resolved(chips)
                assert (run.seq_length, run.precision, run.warnings) == (256, "bf16", ())
                order = [dim for dim in plan.mesh_order.split("-") if getattr(plan, dim) > 1]
                assert order == [d for d in again.mesh_order.split("-") if getattr(again, d) > 1]
                assert again == plan.model_copy(update={"mesh_order": again.mesh_order})
                told += 1
    assert told > 200
    assert refused > 50
    assert refused_orders > 50


@given(
    precision=st.sampled_from(["bf16", "fp16", "fp32", "fp8"]),
    optimizer=st.sampled_from(["adam", "adam-bf16", "adam-8bit", "sgd-momentum"]),
    grad=st.sampled_from(["fp32", "bf16", "fp16"]),
    zero=st.sampled_from([0, 1, 2, 3]),
    ends=st.sampled_from([(0, 0), (1, 3), (3, 0)]),
)
def test_dtypes_optimizers_and_uneven_stages_survive_too(precision, optimizer, grad, zero, ends):
    """The axes that no space varies are written and read alike, or refused on writing."""
    plan = Plan(
        tp=2,
        pp=2,
        global_batch_size=8,
        optimizer=optimizer,
        grad_dtype=grad,
        zero=zero,
        first_stage_layers=ends[0],
        last_stage_layers=ends[1],
    ).resolved(8)
    try:
        line = argument_line(plan, model(), seq_length=256, precision=precision)
    except UnsupportedError:
        fp16_elsewhere = grad == "fp16" and precision != "fp16"
        assert fp16_elsewhere or (zero == 0 and optimizer in ("adam-bf16", "adam-8bit"))
        return
    run = read_arguments(line, model())
    assert Plan(**run.plan).resolved(8) == plan
    assert run.precision == precision


def test_a_flag_is_one_token_a_word():
    """The list form holds flags and values apart, for a launcher to take."""
    flags = arguments(Plan(global_batch_size=4).resolved(4), model(), seq_length=256)
    assert flags[:2] == ["--tensor-model-parallel-size", "1"]
    assert all(" " not in flag for flag in flags)


def test_files_that_are_not_argument_lines(tmp_path):
    """Not there, a folder, not text, too large: refused with the file's name."""
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xfe--bf16")
    zero = tmp_path / "zero.txt"
    zero.write_bytes(b"--bf16 \0")
    large = tmp_path / "large.txt"
    large.write_bytes(b"--bf16 " * 200_000)
    wrong = tmp_path / "wrong.txt"
    wrong.write_text("--bf17")
    for path in (tmp_path / "absent.txt", tmp_path, binary, zero, large, wrong):
        with pytest.raises(ConfigError) as caught:
            read_file(path, model())
        assert caught.value.file == str(path)
    fine = tmp_path / "fine.txt"
    fine.write_text("--tensor-model-parallel-size 2 \\\n  --bf16\n# the end\n")
    assert read_file(fine, model()).plan["tp"] == 2


@given(st.text(max_size=60) | st.lists(st.sampled_from(
    ["--bf16", "--tensor-model-parallel-size", "8", "=", "-1", "--", "--optimizer", "'", "\\"]
)).map(" ".join))  # fmt: skip
def test_any_text_is_read_or_refused(text):
    """No text makes the reader fail in another way than by its own errors."""
    try:
        run = read_arguments(text, model())
    except DseError:
        return
    assert Plan(**{"global_batch_size": 1, **run.plan}).tp >= 1
