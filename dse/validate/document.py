"""Write `docs/validation.md`: `python -m dse.validate.document`.

Every figure of the page is computed from the tree, except aims and what the nearest tools reach,
which stand in `headline.yaml`. The same tree gives the same page.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dse.validate.kernel_document import collective_tables, kernel_tables
from dse.validate.markdown import beside, number, table
from dse.validate.published import validate
from dse.validate.resolve import REASONS
from dse.validate.row_sets import MISS_PCT, belongs, evaluated, mean_error_pct, misses
from dse.validate.rows import bundled_rows
from dse.validate.vocabulary import document, suspects

Report = Mapping[str, Any]
_UNSTATED = ("no time or rate", "batch or sequence not stated")
PAGE = Path("docs") / "validation.md"
_HEAD = """# Validation

How far predictions lie from what others measured. Written by `python -m dse.validate.document`;
`dse validate kernels|collectives|published` prints the same figures with a record for every row.

Errors are of time, `100 (predicted - measured) / measured`; a mean is the mean absolute error in
per cent. *Kernels only* uses no published training run. *Left out* predicts each family of sources
by levels that were fitted without it. *The line* is hardware FLOPs over half of the peak, times
the pipeline bubble; the *fair line* takes its efficiency from the rows of all other families. Rows
under suspicion are predicted and shown, never fitted, and stand outside every mean unless said.
A **bold** figure misses its aim."""


def page(kernels_only: Report, left_out: Report, kernels: Report, collectives: Report) -> str:
    """The whole page.

    Args:
        kernels_only: Report of published runs, no training run used.
        left_out: The same with each family left out.
        kernels: Report of `hwmodels.calibration.validate`.
        collectives: Report of `hwmodels.calibration.collective_validate`.
    """
    parts = [
        _HEAD,
        *headline(kernels_only, left_out),
        *peers(kernels_only, left_out),
        *published(left_out),
        *suspect_rows(left_out),
        *residuals(left_out),
        *chosen(),
        *kernel_tables(kernels),
        *collective_tables(collectives),
    ]
    return "\n\n".join(parts) + "\n"


# Published training runs --------------------------------------------------------------------


def headline(kernels_only: Report, left_out: Report) -> list[str]:
    """Errors of the headlined sets beside their aims, and their means."""
    about = document("headline")
    rows, reached = [], []
    for entry in about["sets"]:
        alone, without = set_errors(kernels_only, entry), set_errors(left_out, entry)
        reached.append((alone["error"], without["error"]))
        rows.append(headline_cells(entry, alone, without))
    means = [float(np.mean([pair[i] for pair in reached])) for i in (0, 1)]
    aims = about["mean"]
    rows.append(
        ("**mean over these sets**", "", *beside(means[0], aims["kernels"]),
         *beside(means[1], aims["left_out"]), "", "", "")
    )  # fmt: skip
    unstated = sum(left_out["refused"].get(reason, 0) for reason in _UNSTATED)
    stated = left_out["rows"] - unstated
    return [
        "## Published training runs",
        f"{left_out['evaluated']} of {left_out['rows']} rows evaluated "
        f"({number(left_out['evaluated_share_pct'])} %), which is "
        f"{number(100.0 * left_out['evaluated'] / stated)} % of the {stated} that state a batch, "
        "a sequence length, a chip count, and a time or a rate "
        f"(aim {about['evaluated_share']}); the others are refused by reason, below.",
        table(_HEADLINE_COLUMNS, rows),
        "Mean over families of sources, each alike: "
        f"{number(left_out['macro_mean_abs_error_pct'])} left out, "
        f"{number(kernels_only['macro_mean_abs_error_pct'])} from kernels only, "
        f"{number(left_out['baseline_macro_mean_abs_error_pct'])} the line, "
        f"{number(left_out['fair_baseline_macro_mean_abs_error_pct'])} the fair line. "
        + _replicas(kernels_only, left_out),
    ]


_HEADLINE_COLUMNS = (
    "rows (mean absolute error of step time, %)",
    "rows",
    "kernels only",
    "aim",
    "left out",
    "aim",
    "left out, with suspect rows",
    "the line",
    "fair line",
)


def set_errors(report: Report, patterns: Mapping[str, Any]) -> dict[str, Any]:
    """Rows and errors of one set under one calibration."""
    kept = [row for row in evaluated(report) if belongs(row, patterns)]
    every = [row for row in evaluated(report, suspect=True) if belongs(row, patterns)]
    return {
        "rows": len(kept),
        "error": mean_error_pct(kept),
        "with_suspect": mean_error_pct(every),
        "line": mean_error_pct(kept, "baseline"),
        "fair_line": mean_error_pct(kept, "fair_baseline"),
    }


def headline_cells(
    entry: Mapping[str, Any], alone: Mapping[str, Any], without: Mapping[str, Any]
) -> tuple[str, ...]:
    """One line of the headline table."""
    return (
        entry["name"],
        str(without["rows"]),
        *beside(alone["error"], entry["aim"]["kernels"]),
        *beside(without["error"], entry["aim"]["left_out"]),
        number(without["with_suspect"]),
        number(without["line"]),
        number(without["fair_line"]),
    )


def _replicas(kernels_only: Report, left_out: Report) -> str:
    ids = document("headline")["replicas"]
    by_id = [{row["id"]: row for row in evaluated(report)} for report in (kernels_only, left_out)]
    ratios = [rows[ids["many"]]["predicted"] / rows[ids["alone"]]["predicted"] for rows in by_id]
    real = by_id[0][ids["many"]]["measured"] / by_id[0][ids["alone"]]["measured"]
    return (
        f"Korthikanti's 530B model slows by {real:.3f} from one replica to eight; predicted "
        f"{ratios[0]:.3f} from kernels only, {ratios[1]:.3f} left out."
    )


def peers(kernels_only: Report, left_out: Report) -> list[str]:
    """The nearest tools on the rows that they were run on."""
    about = document("headline")
    tools = about["tools"]
    rows = []
    for entry in about["peers"]:
        alone, without = set_errors(kernels_only, entry), set_errors(left_out, entry)
        rows.append(
            (
                entry["name"],
                str(without["rows"]),
                *(number(entry.get(tool)) for tool in tools),
                number(without["line"]),
                number(without["fair_line"]),
                number(alone["error"]),
                number(without["error"]),
                entry.get("note", ""),
            )
        )
    names = tuple(tool["name"] for tool in tools.values())
    versions = " and ".join(f"{tool['name']} {tool['version']}" for tool in tools.values())
    return [
        "### Beside other tools",
        f"{versions}, measured by running the tools on the same tables: Calculon with the A100 "
        "description that it ships, SimuMax with one written for A100-SXM, as it ships none.",
        table(("rows (mean, %)", "rows here", *names, *_PEERS_COLUMNS), rows),
    ]


def _aimed(families: Mapping[str, Report]) -> str:
    """Coverage and regret beside their aims, in words."""
    about = document("headline")
    least, most = about["coverage_80"]["least"], about["coverage_80"]["most"]
    held = {name: entry["coverage_80_pct"] for name, entry in families.items()}
    inside = sorted(name for name, share in held.items() if least <= share <= most)
    narrow = sorted(name for name, share in held.items() if share < least)
    wide = sorted(name for name, share in held.items() if share > most)
    regrets = [families[name]["regret_pct"] for name in about["regret"]["families"]]
    return (
        f"Intervals of 80 % should hold {least} to {most} % of rows. They hold "
        f"{number(float(np.mean(list(held.values()))))} % with families alike; inside: "
        f"{', '.join(inside) or 'none'}; too narrow: {', '.join(narrow) or 'none'}; too wide: "
        f"{', '.join(wide) or 'none'}. Regret over the groups of "
        f"{' and '.join(about['regret']['families'])}: {number(float(np.mean(regrets)))} % "
        f"(aim {about['regret']['most']})."
    )


_PEERS_COLUMNS = ("the line", "fair line", "kernels only", "left out", "note")


def published(left_out: Report) -> list[str]:
    """Errors, coverage and rank quality by source and by family, and the refusals."""
    columns = (
        ("mean", "mean_abs_error_pct"),
        ("median", "median_abs_error_pct"),
        ("bias", "bias_pct"),
        ("50 % holds", "coverage_50_pct"),
        ("80 % holds", "coverage_80_pct"),
        ("95 % holds", "coverage_95_pct"),
        ("tau", "kendall_tau"),
        ("regret", "regret_pct"),
        ("the line", "baseline_mean_abs_error_pct"),
        ("fair line", "fair_baseline_mean_abs_error_pct"),
    )
    heads = tuple(head for head, _ in columns)

    def cells(entry: Report) -> tuple[str, ...]:
        return tuple(number(entry[key], 2 if key == "kendall_tau" else 1) for _, key in columns)

    sources = [
        (name, str(entry["rows"]), str(entry["evaluated"]), str(entry["suspect"]), *cells(entry))
        for name, entry in sorted(left_out["by_source"].items())
        if entry["evaluated"]
    ]
    families = [
        (name, str(entry["evaluated"]), *cells(entry))
        for name, entry in sorted(left_out["by_family"].items())
    ]
    macro: list[str] = []
    for _, key in columns:
        told = [entry[key] for entry in left_out["by_family"].values() if entry[key] is not None]
        macro.append(number(float(np.mean(told)), 2 if key == "kendall_tau" else 1))
    families.append(("**mean, families alike**", str(left_out["evaluated"]), *macro))
    families.append(("**all rows alike**", str(left_out["evaluated"]), *cells(left_out)))
    refused = [
        (str(count), reason, REASONS[reason]) for reason, count in left_out["refused"].items()
    ]
    return [
        "### By source, left out",
        "Tau is Kendall's over pairs of plans of one model, chip count and batch that differ by "
        "at least 5 %; regret is how much slower the plan predicted fastest really was than the "
        "fastest measured, in per cent.",
        table(("source", "rows", "evaluated", "suspect", *heads), sources),
        "### Coverage of the intervals, by family left out",
        _aimed(left_out["by_family"]),
        table(("family", "evaluated", *heads), families),
        "### Refused rows",
        table(("rows", "reason", "meaning"), refused),
    ]


def suspect_rows(left_out: Report) -> list[str]:
    """Rows outside the means, with why."""
    by_id = {row["id"]: row for row in left_out["records"]}
    ids = defaultdict(list)
    for identity, reason in suspects().items():
        ids[reason].append(identity)
    rows = []
    for reason, group in ids.items():
        errors = [
            f"{by_id[name]['error_pct']:+.0f}"
            for name in group
            if by_id.get(name, {}).get("status") == "evaluated"
        ]
        rows.append((", ".join(group), reason, " ".join(errors) or "refused"))
    recalled = [row for row in evaluated(left_out, suspect=True) if row["suspect"] == "recalled"]
    if recalled:
        rows.append(
            (
                ", ".join(row["id"] for row in recalled),
                "recalled, not read from the source",
                " ".join(f"{row['error_pct']:+.0f}" for row in recalled),
            )
        )
    return [
        "### Rows under suspicion",
        "The list grows only on evidence other than our own error.",
        table(("rows", "why", "errors left out, %"), rows),
    ]


def residuals(left_out: Report) -> list[str]:
    """The largest misses with their physical reason."""
    seqs = {row.id: row.seq for row in bundled_rows()}
    reasons = document("residuals")["reasons"]
    rows = []
    for reason, missed in misses(evaluated(left_out), reasons, seqs):
        worst = max(missed, key=lambda row: (abs(row["error_pct"]), row["id"]))
        errors = [row["error_pct"] for row in missed]
        sources = sorted({row["family"] for row in missed})
        shown = (f"{min(errors):+.0f} to {max(errors):+.0f}" if len(errors) > 1
                 else f"{errors[0]:+.0f}")  # fmt: skip
        cause = reason or "**not explained**"
        rows.append((", ".join(sources), str(len(missed)), shown, worst["id"], cause))
    return [
        "### The largest misses, and why",
        f"Every row outside its 80 % interval or missed by more than {MISS_PCT:.0f} %, left out.",
        table(_RESIDUAL_COLUMNS, rows),
    ]


_RESIDUAL_COLUMNS = (
    "family",
    "rows",
    "errors, %",
    "largest",
    "physical reason, as far as rows tell",
)


def chosen() -> list[str]:
    """What was decided with residuals in view."""
    told = [f"- {line}" for line in document("residuals")["chosen"]]
    return ["### What was chosen with residuals in view", "\n".join(told)]


def write(path: Path) -> None:
    """Judge everything bundled and write the page."""
    from hwmodels.calibration.collective_validate import validate_collectives
    from hwmodels.calibration.validate import validate_kernels

    text = page(
        validate(calibration="kernels-only"),
        validate(calibration="leave-source-out"),
        validate_kernels(),
        validate_collectives(),
    )
    path.write_text(text, encoding="utf-8")


def main() -> int:
    """Write the page to the path given, else into the tree."""
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
