"""Designs at the door: what cannot be built is refused by name and amount."""

import re

import numpy as np
import pytest

from hwmodels.accelerator import DesignColumns, Systolic, load_template, read_template, violations
from hwmodels.errors import ConfigError, UnitError, UnsupportedError
from hwmodels.sourced import document

pytestmark = pytest.mark.fast

FIELDS = {
    "name": "mine",
    "node_nm": 5,
    "clock_hz": 1.5e9,
    "cores": 4,
    "arrays_per_core": 4,
    "rows": 128,
    "cols": 128,
    "lanes_per_core": 1024,
    "special_per_cycle_per_core": 128,
    "scratchpad_bytes_per_core": 32e6,
    "precision": "bf16",
    "memory": "hbm3",
    "memory_stacks": 4,
    "scaleup_bytes_per_s_per_dir": 400e9,
    "nic_bytes_per_s_per_dir": 50e9,
}
TEXT = """
kind: accelerator
name: mine
node_nm: 5
clock: 1.5 GHz
cores: 4
arrays_per_core: 4
rows: 128
cols: 128
lanes_per_core: 1024
special_per_cycle_per_core: 128
scratchpad_per_core: 32 MB
memory: hbm3
memory_stacks: 4
scaleup: 400 GB/s
nic: 400 Gb/s
"""


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"clock_hz": 3.1e9}, "clock_hz", r"clock is 3\.1 GHz, 0\.5 GHz over"),
        ({"memory_bytes_per_s_per_stack": 1e12}, "memory_bytes_per_s_per_stack", r"181 GB/s over"),
        ({"memory_bytes_per_stack": 30e9}, "memory_bytes_per_stack", r"6 GB over"),
        ({"cores": 64, "clock_hz": 0.8e9}, "dies", r"reticle is .* mm2, .* mm2 over"),
        ({"memory_stacks": 12}, "memory_stacks", r"memory beachfront is 93 mm, .* mm over"),
        ({"scaleup_bytes_per_s_per_dir": 4e12}, "scaleup", r"beachfront is .* mm, .* mm over"),
        ({"cores": 0}, "cores", "cores is 0"),
        ({"arrays_per_core": 0}, "arrays_per_core", "is 0"),
        ({"rows": 4096}, "rows", "rows is 4096"),
        ({"lanes_per_core": 0}, "lanes_per_core", "is 0"),
        ({"memory_stacks": 0}, "memory_stacks", "is 0"),
        ({"special_per_cycle_per_core": 0}, "special_per_cycle_per_core", "is 0"),
        ({"clock_hz": float("nan")}, "clock_hz", "is nan"),
        ({"clock_hz": -1.0}, "clock_hz", "is -1"),
        ({"nic_bytes_per_s_per_dir": 0.0}, "nic_bytes_per_s_per_dir", "is 0"),
        ({"scratchpad_bytes_per_core": 100.0}, "scratchpad_bytes_per_core", "is 100"),
        ({"memory_bytes_per_stack": -1.0}, "memory_bytes_per_stack", "is -1"),
        ({"spare_cores": -1}, "spare_cores", "is -1"),
        ({"dies": 3}, "cores", "cores is 4"),
    ],
)
def test_impossible_designs_are_refused_with_the_amount(change, field, message):
    """Each limit names itself, the field to change and by how much it is broken."""
    with pytest.raises(ConfigError, match=message) as caught:
        Systolic(**FIELDS | change)
    assert caught.value.field.startswith(field)
    assert caught.value.allowed


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"node_nm": 9}, "node_nm"),
        ({"memory": "ddr5"}, "memory"),
        ({"precision": "int4"}, "precision"),
    ],
)
def test_unknown_words_are_unsupported(change, field):
    """A node, memory or precision outside the model is refused with the known ones."""
    with pytest.raises(UnsupportedError) as caught:
        Systolic(**FIELDS | change)
    assert caught.value.field == field
    assert (
        "hbm3" in str(caught.value.allowed)
        or "5" in str(caught.value.allowed)
        or ("fp8" in str(caught.value.allowed))
    )


def test_violations_are_values_for_many_designs():
    """A search sees the excess of each design, where the template would raise on one."""
    good = Systolic(**FIELDS)
    bad = good.model_copy(update={"clock_hz": 3.0e9})
    found = violations(DesignColumns.of([good, bad, good]))["clock"]
    np.testing.assert_allclose(found.excess, [-1.1, 0.4, -1.1], atol=1e-12)


def test_two_dies_lift_the_reticle():
    """What is too large for one die fits on two."""
    big = FIELDS | {"cores": 16, "memory_stacks": 8, "arrays_per_core": 8, "clock_hz": 1.2e9}
    with pytest.raises(ConfigError, match="reticle"):
        Systolic(**big)
    assert Systolic(**big | {"dies": 2}).dies == 2


def test_a_file_reads_as_the_same_design(tmp_path):
    """Quantities carry units in the file and are SI inside."""
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT, encoding="utf-8")
    assert load_template(path) == Systolic(**FIELDS)


@pytest.mark.parametrize(
    ("old", "new", "error", "line"),
    [
        ("clock: 1.5 GHz", "clock: 1.5", UnitError, 5),
        ("clock: 1.5 GHz", "clock: 5 GHz", ConfigError, None),
        ("cores: 4", "coers: 4", ConfigError, 6),
        ("nic: 400 Gb/s", "", ConfigError, None),
    ],
)
def test_a_wrong_file_is_refused_at_its_line(old, new, error, line):
    """Missing units, unknown keys and impossible values point into the file."""
    section = document(
        re.sub(re.escape(old), new, TEXT, count=1), "mine.yaml", kinds=("accelerator",)
    )
    with pytest.raises(error) as caught:
        read_template(section)
    assert caught.value.file == "mine.yaml"
    assert caught.value.line is not None
    if line:
        assert caught.value.line == line


def test_memory_defaults_to_the_generation():
    """A stack without capacity or rate offers what its generation does."""
    columns = DesignColumns.of([Systolic(**FIELDS)])
    assert columns.memory_bytes[0] == 4 * 24e9
    assert columns.memory_bytes_per_s[0] == 4 * 819e9
