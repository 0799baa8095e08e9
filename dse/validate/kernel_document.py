"""Tables of `docs/validation.md` on kernels and collectives: what rows cover, then the errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from dse.validate.markdown import beside, number, table
from dse.validate.vocabulary import document

Report = Mapping[str, Any]


def kernel_tables(report: Report) -> list[str]:
    """Coverage first, then errors within chip, with shapes and silicon left out."""
    counted: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0])
    for entry in report["coverage"]:
        key = (entry["class"], entry["chip"], entry.get("direction", ""), entry["status"])
        counted[key][0] += entry["rows"]
        counted[key][1] += entry["fitted"]
    coverage = [(*key[:3], str(n), str(fitted), key[3]) for key, (n, fitted) in counted.items()]
    aims = document("headline")["kernels"]
    held = []
    for kind, classes in report["held_out"].items():
        for name, silicons in classes.items():
            for silicon, entry in silicons.items():
                aim = aims[kind].get(name)
                held.append(
                    (kind.replace("_", " "), name, silicon, str(entry["rows"]),
                     *beside(entry["median_abs_error_pct"], aim),
                     number(entry["mean_abs_error_pct"]))
                )  # fmt: skip
    return [
        "## Kernels",
        f"{report['evaluated']} of {report['rows']} rows evaluated. What no row covers is "
        "*assumed*, with a wide interval.",
        table(("class", "chip", "direction", "rows", "fitted", "status"), coverage),
        "### Kernels left out of the fit",
        table(("left out", "class", "silicon", "rows", "median", "aim", "mean"), held),
        "### Kernels as shipped",
        "The line of kernels is the roofline at peak.",
        table(("class", *_SCORE_HEADS), _scored(report["by_class"])),
        table(("chip", *_SCORE_HEADS), _scored(report["by_chip"])),
    ]


def collective_tables(report: Report) -> list[str]:
    """Coverage first, then errors with sizes, sources and chips left out."""
    counted: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0])
    for entry in report["coverage"]:
        nodes = entry.get("nodes")
        where = entry.get("where") or (
            "" if nodes is None else "one node" if nodes == 1 else f"{nodes} nodes"
        )
        key = (entry["verb"], entry["chip"], where, entry["status"])
        counted[key][0] += entry["rows"]
        counted[key][1] += entry["fitted"]
    coverage = [(*key[:3], str(n), str(fitted), key[3]) for key, (n, fitted) in counted.items()]
    aims = document("headline")["collectives"]
    held = []
    for kind, technologies in report["held_out"].items():
        for technology, sources in technologies.items():
            for source, sizes in sources.items():
                for size, entry in sizes.items():
                    aim = aims.get(kind, {}).get(size)
                    held.append(
                        (kind.replace("_", " "), technology, source, size, str(entry["rows"]),
                         *beside(entry["median_abs_error_pct"], aim),
                         number(entry["mean_abs_error_pct"]))
                    )  # fmt: skip
    return [
        "## Collectives",
        f"{report['evaluated']} of {report['rows']} rows evaluated. Between nodes only all-reduce "
        "is measured; half-widths of the other verbs are wider there.",
        table(("verb", "chip", "where", "rows", "fitted", "status"), coverage),
        "### Collectives left out of the fit",
        "Below 1 MiB sources disagree with one another; no aim is stated for a source or a chip "
        "left out there.",
        table(("left out", "links", "source", "size", "rows", "median", "aim", "mean"), held),
        "### Collectives as shipped",
        "The line of collectives is bytes over nominal rates.",
        table(("place and size", *_SCORE_HEADS), _scored(report["by_size"])),
        table(("verb", *_SCORE_HEADS), _scored(report["by_verb"])),
        table(("chip", *_SCORE_HEADS), _scored(report["by_chip"])),
    ]


_SCORES = (
    ("median", "median_abs_error_pct"),
    ("mean", "mean_abs_error_pct"),
    ("bias", "bias_pct"),
    ("50 % holds", "coverage_50_pct"),
    ("80 % holds", "coverage_80_pct"),
    ("95 % holds", "coverage_95_pct"),
    ("the line", "baseline_mean_abs_error_pct"),
)
_SCORE_HEADS = ("rows", *(head for head, _ in _SCORES))


def _scored(groups: Mapping[str, Report]) -> list[tuple[str, ...]]:
    return [
        (name, str(entry["rows"]), *(number(entry[key]) for _, key in _SCORES))
        for name, entry in sorted(groups.items())
    ]
