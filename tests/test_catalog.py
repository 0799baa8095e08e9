"""The shipped catalogue: consistent with itself, sourced, and sized right."""

from __future__ import annotations

import subprocess
import sys
from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hwmodels
from hwmodels import (
    ConfigError,
    describe,
    list_chips,
    list_clusters,
    list_nodes,
    load_chip,
    load_cluster,
)
from hwmodels.catalog import names, rules, sizing
from hwmodels.sourced import load_document
from hwmodels.table import HardwareTable

CHIP_FILES = sorted((names.CATALOG / "chips").glob("*.yaml"))
WITH_PINS = [path for path in CHIP_FILES if "memory_pin_rate" in path.read_text(encoding="utf-8")]
NODE_FILES = sorted((names.CATALOG / "nodes").glob("*.yaml"))
CLUSTERS = [*list_nodes(), *list_clusters()]


# --- chips ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", CHIP_FILES, ids=lambda path: path.stem)
def test_peaks_are_units_times_rate_times_clock(path: Path) -> None:
    """A 16-bit peak is within 6 % of units x FLOP per clock x clock, hence dense.

    B200 is published at 1.856 GHz and GB200 at 2.008 GHz, below their clocks; H800's 989 TFLOP/s
    at 1.755 GHz is 4 % above its own arithmetic.
    """
    section = load_document(path, ("chip",))
    per_clock = section.integer("matrix_units") * section.number("matrix_flop_per_clock")
    chip = load_chip(path)
    assert chip.clock_hz is not None
    peak = chip.peak_flop_per_s.get("bf16") or chip.peak_flop_per_s["fp16"]
    assert peak == pytest.approx(per_clock * chip.clock_hz, rel=0.06)


@pytest.mark.parametrize("path", WITH_PINS, ids=lambda path: path.stem)
def test_memory_rate_is_stacks_times_pins(path: Path) -> None:
    """Memory rate is stacks x 1024 pins x pin rate, within 3 %."""
    section = load_document(path, ("chip",))
    pin_rate = section.quantity("memory_pin_rate", "bytes_per_s")
    assert pin_rate is not None
    rate = section.integer("memory_stacks") * 1024 * pin_rate.value
    assert load_chip(path).memory_bytes_per_s == pytest.approx(rate, rel=0.03)


@pytest.mark.parametrize(
    ("name", "bf16", "fp8", "memory_gib", "memory_rate", "cores", "silicon"),
    [
        # Data sheets print twice these peaks "with sparsity"; H100 at 1.83 GHz.
        ("h100", 989.4e12, 1979e12, 80, 3350e9, 132, "gh100"),
        ("a100-80gb", 312e12, None, 80, 2039e9, 108, "ga100"),
        ("A100-SXM4-40GB", 312e12, None, 40, 1555e9, 108, "ga100"),
        ("h200", 989.5e12, 1979e12, 141, 4800e9, 132, "gh100"),
        ("H800", 989e12, 1979e12, 80, 3350e9, 132, "gh100"),
        ("b200", 2250e12, 4500e12, 180, 8000e9, 148, "gb100"),
        ("GB200", 2500e12, 5000e12, 186, 8000e9, 152, "gb100"),
        ("MI300X", 1307.4e12, 2614.9e12, 192, 5300e9, 304, "mi300x"),
        ("tpu v4", 275e12, None, 32, 1200e9, 2, "tpuv4"),
        ("TPUv5p", 459e12, 459e12, 95, 2765e9, 2, "tpuv5p"),
    ],
)
def test_dense_peaks_and_memories(
    name: str,
    bf16: float,
    fp8: float | None,
    memory_gib: float,
    memory_rate: float,
    cores: int,
    silicon: str,
) -> None:
    """The numbers that decide most, against their data sheets."""
    chip = load_chip(name)
    assert chip.peak_flop_per_s["bf16"] == pytest.approx(bf16)
    assert chip.peak_flop_per_s.get("fp8") == (pytest.approx(fp8) if fp8 else None)
    assert chip.memory_bytes == memory_gib * 2**30
    assert chip.memory_bytes_per_s == memory_rate
    assert (chip.num_cores, chip.silicon) == (cores, silicon)


def test_v100_has_no_bf16() -> None:
    """A dtype that a chip's matrix units do not take is absent, not estimated."""
    assert set(load_chip("v100").peak_flop_per_s) == {"fp16", "fp32", "fp64"}


@pytest.mark.parametrize("name", list_chips())
def test_every_number_of_a_chip_has_a_source(name: str) -> None:
    """Each fact names its source, and what is estimated is exactly what says so."""
    chip = load_chip(name)
    assert all(fact.source for fact in chip.facts.values())
    assert set(chip.estimated) == {n for n, f in chip.facts.items() if f.status == "estimated"}
    assert chip.columns().keys() <= chip.facts.keys()
    assert set(chip.kernel) == set(chip.kernel_status)
    assert {f"kernel.{n}" for n, s in chip.kernel_status.items() if s != "measured"} <= set(
        chip.estimated
    )


# --- nodes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLUSTERS)
def test_scaleup_rate_is_that_of_the_chip(name: str) -> None:
    """Level 0 gives a chip all its scale-up links: the stated rate, or its links together."""
    cluster = load_cluster(name)
    inner = cluster.levels[0]
    axes = [level for level in cluster.levels if level.name.startswith("torus_")]
    links = 2 * len(axes) or 1
    assert cluster.chip.scaleup_bytes_per_s_per_dir == pytest.approx(
        links * inner.bytes_per_s_per_chip_per_dir
    )


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [
        # cards x Gb/s / 8 bits / chips of the host
        ("dgx-h100", 8 * 400 / 8 / 8),
        ("dgx-a100-80gb", 8 * 200 / 8 / 8),
        ("dgx-1-v100-32gb", 4 * 100 / 8 / 8),
        ("dgx-2", 8 * 100 / 8 / 16),
        ("aws-p4d.24xlarge", 4 * 100 / 8 / 8),
        ("p5", 32 * 100 / 8 / 8),
        ("nvl72", 4 * 400 / 8 / 4),
        ("8x-mi300x", 8 * 400 / 8 / 8),
        ("selene", 8 * 200 / 8 / 8),
        ("meta-grandteton-roce", 8 * 400 / 8 / 8),
    ],
)
def test_share_of_network_cards(name: str, gb_per_s: float) -> None:
    """Between nodes a chip owns its share of the host's cards, in bytes."""
    assert load_cluster(name).levels[1].bytes_per_s_per_chip_per_dir == gb_per_s * 1e9


@pytest.mark.parametrize(
    ("name", "reduces"), [("dgx-a100", False), ("dgx-h100", True), ("nvl72", True)]
)
def test_switches_that_reduce(name: str, reduces: bool) -> None:
    """NVSwitch reduces from H100 on; the network between nodes does not unless a file says so."""
    inner, outer = load_cluster(name, 144).levels
    assert inner.in_network_reduction is reduces
    assert not outer.in_network_reduction


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_number_of_a_cluster_has_a_source(name: str) -> None:
    """Rates, latencies and efficiencies of all levels name their source."""
    cluster = load_cluster(name)
    assert all(fact.source for fact in cluster.facts.values())
    for level in cluster.levels:
        stem = level.name.split("_x")[0].split("_y")[0].split("_z")[0]
        assert cluster.facts[f"levels.{stem}.latency_s"].value == level.latency_s
        assert 0.3 <= level.efficiency <= 1


# --- sizes ---------------------------------------------------------------------------------------


def _shape(name: str, num_chips: int | None, topology: str | None = None) -> list[tuple[str, int]]:
    cluster = load_cluster(name, num_chips, topology=topology)
    return [(level.kind, level.size) for level in cluster.levels]


def test_sizes_of_nodes() -> None:
    """Whole nodes, or a part of one; the number of levels stays."""
    assert _shape("dgx-h100", 1024) == [("switch", 8), ("switch", 128)]
    assert _shape("dgx-h100", 4) == [("switch", 4), ("switch", 1)]
    assert _shape("dgx-h100", 1) == [("switch", 1), ("switch", 1)]
    assert _shape("dgx-h100", None) == [("switch", 8), ("switch", 1)]
    assert load_cluster("dgx-h100", 4).chips_per_node == 4


def test_sizes_of_racks_apart_from_hosts() -> None:
    """An NVL72 is one switch of 72 over 18 hosts of 4; jobs may take equal parts of racks."""
    assert _shape("nvl72", 144) == [("switch", 72), ("switch", 2)]
    assert _shape("nvl72", 256) == [("switch", 64), ("switch", 4)]
    assert _shape("nvl72", 8) == [("switch", 8), ("switch", 1)]
    assert load_cluster("nvl72", 144).chips_per_node == 4


def test_sizes_of_pods() -> None:
    """Pods of 384 nodes at full bisection, 1:7 between pods; other counts split them equally."""
    assert _shape("meta-grandteton-roce", 6144) == [("switch", 8), ("switch", 384), ("switch", 2)]
    # 16384 / 8 = 2048 nodes; the largest divisor of 2048 up to 384 is 256
    assert _shape("meta-grandteton-roce", 16384) == [("switch", 8), ("switch", 256), ("switch", 8)]
    assert load_cluster("meta-grandteton-roce", 6144).levels[2].oversubscription == 7


def test_sizes_of_tori() -> None:
    """Slices of whole 4x4x4 cubes wrap around and are near-cubic; smaller ones are meshes."""
    assert _shape("tpuv4-pod", 4096)[:3] == [("ring", 16)] * 3
    assert _shape("tpuv4-pod", 128)[:3] == [("ring", 4), ("ring", 4), ("ring", 8)]
    # MLPerf on 3456 TPU v4: 3456 / 64 = 54 = 3 x 3 x 6 cubes
    assert _shape("tpuv4-pod", 3456)[:3] == [("ring", 12), ("ring", 12), ("ring", 24)]
    assert _shape("tpuv4-pod", 16)[:3] == [("line", 2), ("line", 2), ("line", 4)]
    assert _shape("tpuv4-pod", 8192)[3] == ("switch", 2)
    assert _shape("tpuv4-pod", 64, "2x4x8")[:3] == [("line", 2), ("line", 4), ("line", 8)]
    assert _shape("tpuv5p-pod", None, "8x16x48")[:3] == [("ring", 8), ("ring", 16), ("ring", 48)]


def test_full_mesh_of_fewer_chips_keeps_fewer_links() -> None:
    """An MI300X reaches each of seven peers at 64 GB/s: with three peers it has 192 GB/s."""
    assert load_cluster("8x-mi300x", 8).levels[0].bytes_per_s_per_chip_per_dir == 448e9
    part = load_cluster("8x-mi300x", 4).levels[0]
    assert part.bytes_per_s_per_chip_per_dir == pytest.approx(3 * 64e9)


@pytest.mark.parametrize(
    ("name", "count", "allowed"),
    [
        ("dgx-h100", 60, [56, 64]),
        ("dgx-h100", 9, [8, 16]),
        ("nvl72", 6, [4, 8]),
        ("nvl72", 100, [96, 104]),
        ("tpuv4-pod", 96, [64, 128]),
        # 1021 nodes are prime: no equal pods of 192 to 384; 1020 = 3 x 340, 1023 = 3 x 341
        ("meta-grandteton-roce", 8168, [8160, 8184]),
    ],
)
def test_counts_that_do_not_fit_name_the_nearest_that_do(
    name: str, count: int, allowed: list[int]
) -> None:
    """A count that fills no whole units is refused, with the nearest counts below and above."""
    with pytest.raises(ConfigError) as caught:
        load_cluster(name, count)
    assert (caught.value.field, caught.value.value) == ("chips", count)
    assert caught.value.allowed == allowed
    assert [load_cluster(name, n).num_chips for n in allowed] == allowed


@pytest.mark.parametrize("count", [0, -8, 10**9, True, 8.0, "8"])
def test_counts_that_are_none(count: object) -> None:
    """Zero, negative, absurd and non-integer counts are refused."""
    with pytest.raises(ConfigError):
        load_cluster("dgx-h100", count)  # type: ignore[arg-type]


@pytest.mark.parametrize("topology", ["4x4", "4x4x4x4", "0x4x4", "4 x 4 x 4", "abc", ""])
def test_topologies_that_are_none(topology: str) -> None:
    """A topology has as many axes as the torus, none of them empty."""
    with pytest.raises(ConfigError, match="topology"):
        load_cluster("tpuv4-pod", topology=topology)


def test_topology_of_a_machine_without_one() -> None:
    """Only a torus takes a topology."""
    with pytest.raises(ConfigError, match="no torus"):
        load_cluster("dgx-h100", topology="4x4x4")


@given(st.sampled_from(CLUSTERS), st.integers(1, 20_000))
def test_sizes_multiply_to_the_chips(name: str, count: int) -> None:
    """An accepted count is the product of the sizes; a refused one names better ones."""
    blueprint = _blueprints()[name]
    shapes = [spec.shape for spec in blueprint.specs]
    if sizing.split(shapes, count, blueprint.chips_per_node) is None:
        with pytest.raises(ConfigError) as caught:
            blueprint.sized(count, None)
        assert caught.value.allowed
        return
    cluster = blueprint.sized(count, None)
    assert prod(level.size for level in cluster.levels) == count
    full = blueprint.sized(None, None)
    assert len(cluster.levels) == len(full.levels)


@given(st.integers(1, 5000), st.integers(1, 4), st.sampled_from([1, 2, 4]))
def test_torus_axes(n: int, axes: int, unit: int) -> None:
    """Axes ascend and multiply to the slice; whole cubes have edges of whole units."""
    dims = sizing.torus(n, axes, unit)
    if dims is None:
        assert n % unit**axes
        return
    assert prod(dims) == n
    assert list(dims) == sorted(dims)
    if n % unit**axes == 0:
        assert all(edge % unit == 0 for edge in dims)


def test_clusters_become_rows() -> None:
    """Two nodes of the same network kinds share a table."""
    table = HardwareTable.of([load_cluster("dgx-h100", 64), load_cluster("dgx-a100", 64)])
    assert table.level_kinds == ("switch", "switch")
    assert table.chip["memory_bytes_per_s"].tolist() == [3350e9, 2039e9]
    assert "kernel.matmul_start_s" in table.chip


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*CHIP_FILES, *NODE_FILES], ids=lambda path: path.stem)
def test_files_are_named_after_what_they_hold(path: Path) -> None:
    """Looking a name up needs no file but its own."""
    name = load_document(path, ("chip", "node", "cluster")).text("name")
    assert path.stem == name.lower().replace(".", "-")


@pytest.mark.parametrize("folder", ["chips", "nodes"])
def test_aliases_mean_files(folder: str) -> None:
    """Each alias leads to a file, and none hides a file's own name."""
    assert set(names.aliases(folder).values()) <= set(names.stems(folder).values())
    assert not names.aliases(folder).keys() & names.stems(folder).keys()


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("DGX_H100", "DGX-H100"),
        ("dgxh100", "DGX-H100"),
        ("dgx-a100-80gb", "DGX-A100-640GB"),
        ("dgx-a100", "DGX-A100-640GB"),
        ("NVL72", "DGX-GB200-NVL72"),
        ("aws p5.48xlarge", "AWS-p5.48xlarge"),
        ("H100", "DGX-H100"),
    ],
)
def test_names_match_whatever_their_case_and_separators(written: str, name: str) -> None:
    """Case, dash, dot and underscore do not count, and aliases lead to the node."""
    assert load_cluster(written).name == name


def test_link_rules_are_sourced() -> None:
    """Each technology states its numbers with source, range and status."""
    for technology in rules.technologies().values():
        assert {"efficiency", "latency_s", "start_s"} <= set(technology.numbers)
        for fact in technology.numbers.values():
            assert fact.source
            assert fact.low is not None
            assert fact.high is not None
            assert fact.low <= fact.value <= fact.high


# --- show ----------------------------------------------------------------------------------------


def test_describe_gives_every_field_with_its_provenance() -> None:
    """What `show` prints: each field with source, date and status, each estimate with its rule."""
    chip = describe("h100")
    assert (chip["kind"], chip["name"]) == ("chip", "H100-SXM5-80GB")
    assert "h100" in chip["aliases"]
    price = next(field for field in chip["fields"] if field["field"] == "price_usd")
    assert (price["value"], price["date"], price["status"]) == (31250, "2025-03", "verified")
    assert all(entry["rule"] for entry in chip["estimated"])
    node = describe("dgx-2", "node", 32)
    assert (node["num_chips"], node["levels"][1]["size"]) == (32, 2)
    assert describe("selene")["kind"] == "cluster"
    recalled = next(f for f in describe("tpuv4", "chip")["fields"] if f["field"] == "die_mm2")
    assert recalled["status"] == "recalled"
    with pytest.raises(ConfigError):
        describe("h100", "molecule")
    with pytest.raises(ConfigError):
        describe("no-such-thing")


def test_importing_the_package_is_light() -> None:
    """`import hwmodels` reads no file and imports neither pydantic nor a YAML reader."""
    heavy = {"pydantic", "ruamel.yaml", "numpy"}
    code = f"import hwmodels, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert set(hwmodels.__all__) <= set(dir(hwmodels))
    assert all(hasattr(hwmodels, name) for name in hwmodels.__all__)


def _blueprints() -> dict[str, hwmodels.catalog.Blueprint]:
    if not _CACHE:
        for path in NODE_FILES:
            section = load_document(path, ("node", "cluster"))
            _CACHE[section.text("name")] = hwmodels.catalog.read_blueprint(section)
    return _CACHE


_CACHE: dict[str, hwmodels.catalog.Blueprint] = {}
