"""Chip, node and cluster files of one's own: read, completed, and refused without a traceback."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hwmodels
from hwmodels import ConfigError, UnitError, load_chip, load_cluster
from hwmodels.catalog import chip_file, cluster_file, level_file, rules
from hwmodels.sourced import Section, document
from hwmodels.units import UNITS
from hwmodels.yamltree import MAX_BYTES

MINIMAL = """\
kind: chip
name: mine
peak: {bf16: "400 TFLOP/s"}
memory: "64 GiB"
memory_rate: "2 TB/s"
links: {scaleup: "200 GB/s", scaleout: "200 Gb/s"}
"""

NODE = """\
kind: node
name: my-node
source: a data sheet
date: "2026-01"
chip: h100
chips_per_node: 8
levels:
  - {name: nvlink, technology: nvlink4, size: 8, rate: "450 GB/s"}
  - {name: net, technology: infiniband, nics_per_node: 4, nic_rate: "200 Gb/s"}
power: "10 kW"
"""

CLUSTER = """\
kind: cluster
name: my-site
node: dgx-h100
outer_levels:
  - {name: pod, size: 16}
  - {name: core, oversubscription: 3, latency: "6 us"}
chips: 256
"""


def _write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# --- what a file may leave open ------------------------------------------------------------------


def test_chip_of_peak_memory_and_links_loads_and_lists_what_is_estimated(tmp_path: Path) -> None:
    """A chip with one peak, memory, its rate and links loads; every other number is listed."""
    chip = load_chip(_write(tmp_path, MINIMAL))
    assert chip.peak_flop_per_s["bf16"] == 400e12
    assert chip.memory_bytes == 64 * 2**30
    assert chip.scaleup_bytes_per_s_per_dir == 200e9
    assert chip.scaleout_bytes_per_s_per_dir == 25e9
    # 1/16 of 400 TFLOP/s
    assert chip.vector_flop_per_s == pytest.approx(25e12)
    assert chip.peak_flop_per_s["fp32"] == pytest.approx(25e12)
    stated = {"peak_flop_per_s.bf16", "memory_bytes", "memory_bytes_per_s"}
    read = {name for name in chip.columns() if name not in stated}
    assert set(chip.estimated) == read
    assert all(chip.facts[name].source for name in chip.estimated)
    assert all(status != "measured" for status in chip.kernel_status.values())
    assert chip.facts["vector_flop_per_s"].low < chip.vector_flop_per_s  # type: ignore[operator]


def test_what_the_file_states_is_not_estimated(tmp_path: Path) -> None:
    """A stated value wins over the rule and leaves the list."""
    more = 'vector_peak: "30 TFLOP/s"\ncores: 100\nkernel: {matmul_start_s: 0.000005}\n'
    chip = load_chip(_write(tmp_path, MINIMAL + more))
    assert chip.vector_flop_per_s == 30e12
    assert chip.num_cores == 100
    assert chip.kernel["matmul_start_s"] == 5e-6
    assert not {"vector_flop_per_s", "num_cores", "kernel.matmul_start_s"} & set(chip.estimated)


def test_chip_file_stands_for_a_cluster(tmp_path: Path) -> None:
    """A chip file alone is scale-up domains of eight joined by its scale-out links."""
    cluster = load_cluster(_write(tmp_path, MINIMAL), 32)
    inner, outer = cluster.levels
    assert (inner.size, outer.size, cluster.chips_per_node) == (8, 4, 8)
    assert inner.bytes_per_s_per_chip_per_dir == 200e9
    assert outer.bytes_per_s_per_chip_per_dir == 25e9
    assert {"scaleup_size", "levels.scaleup.efficiency"} <= set(cluster.estimated)


def test_a_new_device_is_one_file_added_at_run_time(tmp_path: Path) -> None:
    """A node file names a chip file beside it, and both load without touching the catalogue."""
    _write(tmp_path, MINIMAL)
    node = _write(tmp_path, NODE.replace("chip: h100", "chip: ./mine.yaml"), "node.yaml")
    cluster = load_cluster(node, 16)
    assert cluster.chip.name == "mine"
    assert cluster.num_chips == 16
    assert "mine" not in hwmodels.list_chips()


def test_network_card_share() -> None:
    """Four cards of 200 Gb/s over eight chips are 4 x 25 / 8 = 12.5 GB/s a chip."""
    cluster = cluster_file.read_blueprint(document(NODE, "n", ("node",))).sized(64, None)
    assert cluster.levels[1].bytes_per_s_per_chip_per_dir == 12.5e9
    assert cluster.levels[1].size == 8
    assert cluster.node_power_w == 10e3
    fact = cluster.facts["levels.net.bytes_per_s_per_chip_per_dir"]
    assert (fact.written, fact.source, fact.date, fact.status) == (
        "200 Gb/s",
        "a data sheet",
        "2026-01",
        "verified",
    )


def test_outer_levels_replace_the_network_of_the_node() -> None:
    """A cluster keeps the node's domain and takes rates that it does not state from the node."""
    cluster = cluster_file.read_blueprint(document(CLUSTER, "c", ("cluster",))).sized(None, None)
    assert cluster.num_chips == 256
    assert [(lv.name, lv.size, lv.oversubscription) for lv in cluster.levels] == [
        ("nvlink", 8, 1.0),
        ("pod", 16, 1.0),
        ("core", 2, 3.0),
    ]
    assert [lv.bytes_per_s_per_chip_per_dir for lv in cluster.levels[1:]] == [50e9, 50e9]
    assert cluster.levels[2].latency_s == 6e-6
    assert cluster.levels[1].technology == "infiniband"


# --- what is refused -----------------------------------------------------------------------------

BAD_NODES = {
    "misspelt key": ("nics_per_node", "nics_per_nod", "did you mean 'nics_per_node'", 9),
    "bare number": ('"200 Gb/s"', "200", "has no unit", 9),
    "bare exponent": ('"200 Gb/s"', "1e9", "has no unit", 9),
    "case of the unit": ("200 Gb/s", "200 gb/s", "Gb/s is bits", 9),
    "wrong dimension": ("200 Gb/s", "200 GiB", "not of data rate", 9),
    "zero rate": ("200 Gb/s", "0 Gb/s", "zero is not allowed", 9),
    "rate that overflows": ("200 Gb/s", "1e999 Gb/s", "finite", 9),
    "NO for a name": ("name: my-node", "name: NO", "truth value", 2),
    "false for a name": ("name: my-node", "name: false", "is not text", 2),
    "number for a name": ("name: my-node", "name: 72", "is not text", 2),
    "NO for a flag": ("size: 8,", "size: 8, in_network_reduction: NO,", "true, false", 8),
    "text for a number": ("chips_per_node: 8", "chips_per_node: eight", "whole number", 6),
    "float for a count": ("chips_per_node: 8", "chips_per_node: 1e9", "whole number", 6),
    "negative count": ("chips_per_node: 8", "chips_per_node: -8", "is not within", 6),
    "duplicate key": ("power:", "name: again\npower:", "appears twice", 10),
    "anchor": ("name: my-node", "name: &a my-node", "anchors", 2),
    "alias": ("name: my-node", "name: *a", "anchors and aliases", 2),
    "merge key": ("name: my-node", "<<: {name: x}", "merge keys", 2),
    "tag": ("name: my-node", "name: !!python/name:os.system x", "tags", 2),
    "second document": ("power:", "---\nkind: chip\npower:", "second document", 10),
    "no YAML": ("levels:", "levels: [", "not valid YAML", None),
    "null": ("name: my-node", "name:", "has no value", 2),
    "unknown kind": ("kind: node", "kind: nod", "did you mean 'node'", 1),
    "missing key": ("chips_per_node: 8\n", "", "missing chips_per_node", 1),
    "unknown chip": ("chip: h100", "chip: h1000", "did you mean", 5),
    "ambiguous chip": ("chip: h100", "chip: sxm", "any of several", 5),
    "missing chip file": ("chip: h100", "chip: ./none.yaml", "cannot be read", None),
    "unknown technology": ("nvlink4", "nvlnk4", "did you mean", 8),
    "unknown level kind": ("size: 8,", "size: 8, kind: sphere,", "unknown value 'sphere'", 8),
    "two levels of a name": ("name: net", "name: nvlink", "second level", 9),
    "inner level that grows": ("size: 8, ", "", "missing size", 8),
    "card without a count": ("nics_per_node: 4, ", "", "go together", 9),
    "ring with cards": ("name: net,", "name: net, kind: ring,", "states link_rate", 9),
    "oversubscription below 1": ("name: net,", "name: net, oversubscription: 0.5,", "within", 9),
    "efficiency above 1": ("name: net,", "name: net, efficiency: 1.5,", "is not within", 9),
    "efficiency of nan": ("name: net,", "name: net, efficiency: .nan,", "is not within", 9),
    "no levels": (NODE[NODE.index("levels:") : NODE.index("power")], "levels: []\n", "empty", 7),
    "value outside its range": (
        '"10 kW"',
        '{value: "10 kW", low: "11 kW"}',
        "outside its range",
        10,
    ),
    "a date that is none": ('"2026-01"', "yesterday", "is not a date", 4),
}


@pytest.mark.parametrize("case", BAD_NODES)
def test_bad_node_files(tmp_path: Path, case: str) -> None:
    """Each slip is a ConfigError that names the file, the line and the way out."""
    old, new, told, line = BAD_NODES[case]
    assert old in NODE
    path = _write(tmp_path, NODE.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        load_cluster(path)
    assert told in str(caught.value)
    if line is not None:
        assert (caught.value.file, caught.value.line) == (str(path), line)
    json.dumps(caught.value.as_dict())


def test_bare_bandwidth_is_refused_as_a_unit_error(tmp_path: Path) -> None:
    """A bare 200 could be Gb/s or GB/s, and `inter_node_bandwidth` is no key."""
    ring = NODE.replace(
        "technology: infiniband, nics_per_node: 4, nic_rate:", "kind: ring, link_rate:"
    )
    with pytest.raises(UnitError) as caught:
        load_cluster(_write(tmp_path, ring.replace('"200 Gb/s"', "200")))
    assert caught.value.field == "levels[1].link_rate"
    assert caught.value.value == 200
    with pytest.raises(ConfigError, match="inter_node_bandwidth: unknown key"):
        load_cluster(_write(tmp_path, NODE + "inter_node_bandwidth: 200\n"))


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"", "empty"),
        (b"# only a comment\n", "empty"),
        (b"- a\n- b\n", "not a mapping"),
        (b"just text\n", "not a mapping"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "not UTF-8"),
        (b"kind: node\nname: a\x00b\n", "not text"),
        (b"kind: node\nname: \x07\n", "not valid YAML"),
        (b"a: 1\n" * (10 * MAX_BYTES // 5), "larger than 1 MiB"),
        (b"[" * 10_000, "nested deeper"),
        (b"a: " + b"{a: " * 100, "nested deeper"),
        (b"kind: node\n" + b"- " * 40 + b"x", "not valid YAML"),
        (b"kind: " + b"x" * 5000, "longer than 2000"),
        (b"k" * 300 + b": 1\n", "longer than 200"),
        (b"? [a, b]\n: c\n", "key is not plain text"),
        ("kind: node\nname: é\n".encode("latin-1"), "not UTF-8"),
    ],
)
def test_files_that_are_no_such_thing(tmp_path: Path, raw: bytes, told: str) -> None:
    """Empty, binary, huge and deeply nested files are refused in one line."""
    path = tmp_path / "mine.yaml"
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match=told) as caught:
        load_cluster(path)
    assert len(str(caught.value)) < 1000 + len(str(path))
    assert caught.value.file == str(path)
    assert "\n" not in str(caught.value)


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    """A folder, a missing file and an impossible path are refused like any other bad input."""
    for path in (tmp_path, tmp_path / "none.yaml", Path("\0.yaml"), Path("x" * 5000 + ".yaml")):
        with pytest.raises(ConfigError, match="cannot be read"):
            load_chip(path)


@pytest.mark.parametrize("name", ["", "?", "sxm", "dgx", "no-such-node", "h100\0", "x" * 10_000])
def test_names_that_mean_nothing_or_too_much(name: str) -> None:
    """An unknown or ambiguous name is refused with the candidates, in a short message."""
    with pytest.raises(ConfigError) as caught:
        load_cluster(name)
    assert caught.value.hint
    assert len(str(caught.value)) < 1000


def test_sparse_peak_and_doubled_memory_rate_are_refused(tmp_path: Path) -> None:
    """A 16-bit peak or memory rate above what units, pins and clock give is told so."""
    sure = (
        MINIMAL + 'matrix_units: 400\nmatrix_flop_per_clock: 1000\nclock: "1 GHz"\n'
        'memory_stacks: 4\nmemory_pin_rate: "4 Gb/s"\n'
    )  # 400 x 1000 x 1e9 = 400 TFLOP/s; 4 x 1024 x 4 Gb/s = 2.048 TB/s
    assert load_chip(_write(tmp_path, sure)).clock_hz == 1e9
    with pytest.raises(ConfigError, match=r"2\.00 times.*dense"):
        load_chip(_write(tmp_path, sure.replace("400 TFLOP", "800 TFLOP")))
    with pytest.raises(ConfigError, match=r"memory_rate: 4000 GB/s is 1\.95 times"):
        load_chip(_write(tmp_path, sure.replace("2 TB/s", "4 TB/s")))


def test_unknown_kernel_parameter_is_refused(tmp_path: Path) -> None:
    """A parameter that no kernel model reads has the nearest one named."""
    path = _write(tmp_path, MINIMAL + "kernel: {matmul_strat_s: 0.000005}\n")
    with pytest.raises(ConfigError, match="did you mean 'matmul_start_s'") as caught:
        load_chip(path)
    assert caught.value.line == 7


# --- nothing else ever escapes -------------------------------------------------------------------

_PIECES = st.sampled_from(
    [
        *("NO", "no", "true", "null", "1e9", "-1", "0", ".nan", ".inf", "72", '"', "'", "[", "{"),
        *("}", "]", ":", ": ", "- ", "\n", "\n  ", "\t", "#", "&a ", "*a", "<<: ", "!!int ", "|"),
        *('"80 GiB"', "80 GiB", "400 gb/s", "1e400 GB/s", "0 s", "\x07", "\ufeff", "é", "? "),
        *("kind: chip\n", "kind: node\n", "name: x\n", "size: 0", "size: 8", "kind: torus", "---"),
        *(
            "99999999999999999999999999",
            "2001-01-01",
            "unit: 4",
            "axes: 6",
            "value: 3",
            "%YAML 9.9\n",
        ),
    ]
)
_MUTATIONS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 12), st.one_of(_PIECES, st.text(max_size=4))),
    min_size=1,
    max_size=4,
)


@given(st.sampled_from([MINIMAL, NODE, CLUSTER]), _MUTATIONS, st.integers(-1, 5000))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_mutated_files_load_or_are_refused(
    text: str, mutations: list[tuple[float, int, str]], num_chips: int
) -> None:
    """Whatever the file says, either a sane cluster comes out or a ConfigError."""
    for where, removed, piece in mutations:
        at = int(where * len(text))
        text = text[:at] + piece + text[at + removed :]
    try:
        section = document(text, "mutated.yaml", ("chip", "node", "cluster"))
        cluster = cluster_file.read_blueprint(section).sized(num_chips, None)
    except ConfigError as error:
        json.dumps(error.as_dict())
        return
    assert cluster.num_chips == num_chips
    assert all(level.bytes_per_s_per_chip_per_dir > 0 for level in cluster.levels)
    assert all(0 < value < float("inf") for value in cluster.chip.peak_flop_per_s.values())


# --- the shipped schemas -------------------------------------------------------------------------


def _schema(kind: str) -> dict[str, Any]:
    path = Path(hwmodels.__file__).parent / "schemas" / f"{kind}.schema.json"
    schema: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return schema


@pytest.mark.parametrize(
    ("kind", "keys", "required"),
    [
        ("chip", chip_file.KEYS, chip_file.REQUIRED),
        ("node", cluster_file.NODE_KEYS, cluster_file.NODE_REQUIRED),
        ("cluster", cluster_file.CLUSTER_KEYS, cluster_file.CLUSTER_REQUIRED),
    ],
)
def test_schemas_know_the_keys_of_the_reader(
    kind: str, keys: tuple[str, ...], required: tuple[str, ...]
) -> None:
    """Schema and reader accept and require the same keys."""
    schema = _schema(kind)
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(keys)
    assert set(schema["required"]) == set(required)
    if kind == "chip":
        assert set(schema["properties"]["peak"]["properties"]) == set(chip_file.DTYPES)
        assert set(schema["properties"]["links"]["properties"]) == set(chip_file.LINKS)
    else:
        level = schema["$defs"]["level"]
        assert set(level["properties"]) == set(level_file.KEYS)
        assert level["properties"]["kind"]["enum"] == list(level_file.KINDS)
        assert level["properties"]["technology"]["enum"] == list(rules.technologies())


@pytest.mark.parametrize("kind", ["chip", "node", "cluster"])
def test_schemas_know_the_units_of_the_parser(kind: str) -> None:
    """A quantity's pattern takes each unit of its dimension, and no bare number."""
    definitions = _schema(kind)["$defs"]
    for dimension in UNITS.keys() & definitions.keys():
        pattern = definitions[dimension]["oneOf"][0]["pattern"]
        assert all(re.search(pattern, f"1.5 {unit}") for unit in UNITS[dimension])
        assert not re.search(pattern, "200")
        assert not re.search(pattern, "200 furlongs")


def test_section_reads_what_a_stack_or_space_file_needs() -> None:
    """The reader is general: texts, choices, flags, numbers with provenance, nested sections."""
    text = (
        "kind: stack\nsource: a manual\nnames: [a, b]\nfast: true\nshare: {value: 0.8, low: 0.7,"
        " high: 0.9, status: estimated}\nparts: [{size: 2}, {size: 3}]\nwait: 0 us\n"
    )
    section: Section = document(text, "s.yaml", ("stack",))
    assert section.texts("names") == ("a", "b")
    assert section.flag("fast", default=False)
    share = section.ratio("share", maximum=1.0)
    assert share is not None
    assert (share.value, share.low, share.high, share.source, share.status) == (
        0.8,
        0.7,
        0.9,
        "a manual",
        "estimated",
    )
    assert [part.integer("size") for part in section.sections("parts")] == [2, 3]
    wait = section.quantity("wait", "s", zero=True)
    assert wait is not None
    assert wait.value == 0.0
    with pytest.raises(ConfigError, match=r"parts\[1\].*missing other"):
        section.sections("parts")[1].text("other")
