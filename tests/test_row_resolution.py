"""Published rows become cases, or refusals that name what is not modelled."""

from __future__ import annotations

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.stacks import list_stacks, load_stack
from dse.validate.published import measured_s
from dse.validate.resolve import REASONS, Case, Refusal, resolve
from dse.validate.rows import Row, bundled_rows, read_rows
from dse.validate.vocabulary import families
from hwmodels.errors import ConfigError

ROW = {
    "id": "X-1",
    "source": "A laboratory's page",
    "model": "Llama-3 8B",
    "layers": "32",
    "hidden": "4096",
    "ffn": "14336",
    "heads": "32",
    "kv_heads": "8",
    "vocab": "128256",
    "seq": "8192",
    "hardware": "NVIDIA H100-SXM5-80GB",
    "num_devices": "16",
    "precision": "bf16",
    "tp": "2",
    "pp": "1",
    "dp": "8",
    "micro_batch": "1",
    "global_batch": "64",
    "recompute": "none",
    "step_time_s": "6.5",
}


def read(path, *rows):
    """Rows of a file that is written for the purpose."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return read_rows(path)


@pytest.fixture
def one(tmp_path):
    """The outcome of `ROW` with other cells."""

    def outcome(**cells):
        return resolve(read(tmp_path / "rows.csv", {**ROW, **cells})[0][0])

    return outcome


@pytest.fixture(scope="module")
def resolved():
    return [resolve(row) for row in bundled_rows()]


@pytest.mark.fast
def test_every_refusal_has_a_listed_reason(resolved):
    """No bundled row fails in another way than by a documented reason with its detail."""
    refusals = [found for found in resolved if isinstance(found, Refusal)]
    assert {refusal.reason for refusal in refusals} <= set(REASONS)
    assert all(refusal.detail for refusal in refusals)


@pytest.mark.fast
def test_most_rows_that_state_enough_are_evaluated(resolved):
    """At least seven in ten of the rows with model, chips, batch and a time or rate."""
    stated = [
        found
        for found in resolved
        if found.row.global_batch
        and found.row.num_devices
        and (found.row.step_time_s or found.row.tokens_per_s_per_device)
    ]
    evaluated = sum(isinstance(found, Case) for found in stated)
    assert evaluated / len(stated) >= 0.70


@pytest.mark.fast
def test_every_family_names_a_stack_of_the_package():
    """No family of sources points to software that is not described."""
    named = {family.stack for family in families() if not family.refuse}
    assert named <= set(list_stacks())
    for name in named:
        assert load_stack(name).name == name


@pytest.mark.fast
def test_plans_fill_the_chips(resolved):
    """tp·pp·cp·dp is the number of chips of the cluster in every case."""
    for case in resolved:
        if isinstance(case, Case):
            plan = case.plan
            assert plan.tp * plan.pp * plan.cp * plan.dp == case.cluster.num_chips


@pytest.mark.fast
def test_what_a_row_states_is_not_assumed(one):
    """A complete row assumes nothing but what no table prints."""
    case = one(
        cp="1",
        devices_per_node="8",
        inter_link_gbit_per_s_per_device="400",
        seq_parallel="yes",
        fsdp_or_zero="ZeRO-1",
    )
    assert [note.split(" ")[0] for note in case.assumed] == ["node", "stack", "grad_dtype"]


@pytest.mark.fast
def test_what_a_row_leaves_open_is_listed(one):
    """Every filled field stands in `assumed` with its value."""
    case = one(micro_batch="", recompute="", precision="")
    notes = {note.split(" ")[0]: note for note in case.assumed}
    assert {"micro_batch", "recompute", "precision", "sequence_parallel", "zero"} <= set(notes)
    assert notes["micro_batch"].startswith("micro_batch = 1 ")


@pytest.mark.fast
def test_stated_link_replaces_the_nodes(one):
    """100 Gb/s a device is 12.5 GB/s, one direction, whatever the node's cards give."""
    case = one(inter_link_gbit_per_s_per_device="100")
    assert case.cluster.levels[-1].bytes_per_s_per_chip_per_dir == 12.5e9
    assert one().cluster.levels[-1].bytes_per_s_per_chip_per_dir == 50e9


@pytest.mark.fast
@pytest.mark.parametrize(
    ("cells", "reason", "named"),
    [
        ({"hardware": "NVIDIA H100-PCIe-80GB"}, "chip not known", "H100-PCIe"),
        ({"hardware": "Abacus 9000"}, "chip not known", "Abacus 9000"),
        ({"model": "BERT 4B"}, "model kind not modelled", "BERT 4B"),
        ({"model": "Llama2-70B LoRA r16"}, "model kind not modelled", "LoRA"),
        ({"model": "Riddle-7", "layers": ""}, "model not known", "Riddle-7"),
        ({"precision": "int8"}, "precision not modelled", "int8"),
        ({"precision": "NVFP4"}, "precision not modelled", "fp4"),
        ({"global_batch": ""}, "batch or sequence not stated", "global_batch"),
        ({"tp": "", "pp": "", "dp": ""}, "layout not stated", "16 chips"),
        ({"dp": "4"}, "layout contradicts itself", "8"),
        ({"tp": "3", "dp": ""}, "layout contradicts itself", "3"),
        ({"fsdp_or_zero": "DDP BSP-PS"}, "synchronisation not modelled", "BSP-PS"),
        ({"recompute": "sometimes"}, "recompute not known", "sometimes"),
        ({"step_time_s": ""}, "no time or rate", "step_time_s"),
        ({"pp": "7", "tp": "1", "num_devices": "56"}, "layout not modelled", "7 stages"),
    ],
)
def test_refusals_name_what_is_refused(one, cells, reason, named):
    """Each kind of gap is refused for its own reason, with the word in question."""
    refusal = one(**cells)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == reason
    assert named in refusal.detail


@pytest.mark.fast
@given(
    prefix=st.sampled_from(["", "NVIDIA ", "8x "]),
    body=st.sampled_from(["A100-SXM4-80GB", "a100-sxm-80gb", "A100 SXM 80 GB"]),
    suffix=st.sampled_from(["", " (400W)", "(500W)", " CTS"]),
)
def test_spellings_of_one_chip(prefix, body, suffix):
    """Case, vendor, dashes and power limits do not change which chip is meant."""
    cells = {name: value for name, value in ROW.items() if name in Row.__dataclass_fields__}
    numbers = {
        name: float(value) if "." in value else int(value)
        for name, value in cells.items()
        if value.replace(".", "").isdigit()
    }
    row = Row(**{**cells, **numbers, "hardware": f"{prefix}{body}{suffix}", "line": 2})
    assert resolve(row).cluster.chip.name == "A100-SXM4-80GB"


@pytest.mark.fast
def test_embedding_and_head_count_as_layers(resolved):
    """BLOOM's 70 layers on 12 stages are 5, ten times 6, 5, as its launch script partitions."""
    bloom = next(found for found in resolved if found.row.id == "BSQ-0151")
    assert (bloom.plan.first_stage_layers, bloom.plan.last_stage_layers) == (5, 5)
    assert 70 == 5 + 10 * 6 + 5


@pytest.mark.fast
def test_a_rate_is_turned_into_a_step(tmp_path):
    """8192 tokens · 64 sequences at 1000 tokens/s a device on 16 devices take 32.768 s."""
    rate = {**ROW, "step_time_s": "", "tokens_per_s_per_device": "1000"}
    row = read(tmp_path / "rows.csv", rate)[0][0]
    assert measured_s(row) == pytest.approx(8192 * 64 / 16 / 1000)


@pytest.mark.fast
def test_convolutional_rows_are_refused(tmp_path):
    """A file of the other kind is told by its columns and refused row by row."""
    cells = {
        "id": "C-1",
        "source": "a page",
        "model": "ResNet-50",
        "hardware": "V100-SXM2-32GB",
        "images_per_s": "360",
        "image_size": "224",
    }
    rows, warnings = read(tmp_path / "cnn.csv", cells)
    assert not warnings
    assert resolve(rows[0]).reason == "model kind not modelled"


@pytest.mark.fast
def test_unknown_column_warns(tmp_path):
    """A column of the reader's own is named and not read."""
    _, warnings = read(tmp_path / "rows.csv", {**ROW, "colour": "red"})
    assert len(warnings) == 1
    assert "'colour'" in warnings[0]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("cells", "field", "value"),
    [
        ({"layers": "many"}, "layers", "many"),
        ({"layers": "31.5"}, "layers", "31.5"),
        ({"step_time_s": "-1"}, "step_time_s", "-1"),
        ({"step_time_s": "nan"}, "step_time_s", "nan"),
    ],
)
def test_bad_numbers_are_named(tmp_path, cells, field, value):
    """File, line, field and value stand in the error."""
    path = tmp_path / "rows.csv"
    with pytest.raises(ConfigError) as caught:
        read(path, ROW, {**ROW, "id": "X-2", **cells})
    error = caught.value
    assert (error.file, error.line, error.field, error.value) == (str(path), 3, field, value)


@pytest.mark.fast
@pytest.mark.parametrize("missing", ["id", "source", "model", "hardware"])
def test_required_columns(tmp_path, missing):
    """A file without one of the four columns that make a row is refused whole."""
    cells = {name: value for name, value in ROW.items() if name != missing}
    with pytest.raises(ConfigError) as caught:
        read(tmp_path / "rows.csv", cells)
    assert caught.value.field == missing


@pytest.mark.fast
def test_an_id_stands_once(tmp_path):
    """A second row of the same id is refused with the line of the first."""
    with pytest.raises(ConfigError, match="line 2"):
        read(tmp_path / "rows.csv", ROW, ROW)
