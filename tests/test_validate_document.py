"""The committed page of validation is what the tree computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dse.validate.document import (
    chosen,
    headline_cells,
    set_errors,
    write,
)
from dse.validate.kernel_document import kernel_tables
from dse.validate.published import judge, measured_s
from dse.validate.resolve import Case, resolve
from dse.validate.row_sets import belongs, is_missed, mean_error_pct, misses
from dse.validate.rows import bundled_rows
from dse.validate.vocabulary import document, suspects
from hwmodels.calibration.validate import validate_kernels

STALE = "python -m dse.validate.document writes it anew"
SMALL = ("Korthikanti", "SC21", "MLPerf", "Megatron-LM")


def record(**fields):
    """An evaluated record of ten measured seconds."""
    resolved = {"chip": "A100", "model": "GPT-3", "plan": {"tp": 8, "dp": None}}
    return {
        "id": "x",
        "source": "A paper",
        "family": "paper",
        "status": "evaluated",
        "suspect": None,
        "predicted": 11.0,
        "measured": 10.0,
        "low_80": 9.0,
        "high_80": 12.0,
        "error_pct": 10.0,
        "baseline": 12.0,
        "unit": "s",
        "resolved": resolved,
        **fields,
    }


def partial_report(calibration):
    """What the headline reads of a report, for the families that are quick to judge."""
    cases = [found for found in map(resolve, bundled_rows()) if isinstance(found, Case)]
    few = [case for case in cases if case.family in SMALL]
    outcome = judge(few, calibration).outcome
    return {
        "records": [
            {
                **record(),
                "id": case.row.id,
                "source": case.row.source,
                "family": case.family,
                "suspect": suspects().get(case.row.id),
                "predicted": outcome.predicted_s[index],
                "measured": measured_s(case.row),
                "baseline": outcome.baseline_s[index],
                "fair_baseline": outcome.fair_s[index],
                "resolved": {
                    "chip": case.cluster.chip.name,
                    "model": case.workload.config.name,
                    "plan": case.plan.model_dump(),
                },
            }
            for index, case in enumerate(few)
        ]
    }


@pytest.fixture(scope="module")
def committed():
    page = Path(__file__).parents[1] / "docs" / "validation.md"
    return page.read_text(encoding="utf-8")


def test_page_holds_the_errors_of_small_sets(committed):
    """Every headline figure of quick sets, but the fair line's, is computed from this tree."""
    alone, without = partial_report("kernels-only"), partial_report("leave-source-out")
    seen = 0
    for entry in document("headline")["sets"]:
        errors = set_errors(alone, entry), set_errors(without, entry)
        if not errors[0]["rows"]:
            continue
        *cells, _ = headline_cells(entry, *errors)
        line = "| " + " | ".join(cells) + " |"
        found = line in committed
        assert found, f"{line} is not on the page; {STALE}"
        seen += 1
    assert seen == 5


def test_page_holds_the_kernels(committed):
    """The kernels' tables on the page are those of this tree, coverage first."""
    parts = kernel_tables(validate_kernels())
    found = "\n\n".join(parts) in committed
    assert found, f"the page has other kernel tables; {STALE}"
    assert "| class | chip | direction | rows |" in parts[2]


def test_page_says_what_was_chosen(committed):
    """What was decided with residuals in view stands on the page, word for word."""
    assert "\n\n".join(chosen()) in committed


def test_page_holds_every_suspect_row(committed):
    """Each row outside the means is named with its reason."""
    for identity, reason in suspects().items():
        assert identity in committed
        assert reason.replace("|", "\\|") in committed


def test_page_has_aims_and_other_tools(committed):
    """Each headlined set stands beside its aim, each tool with the version that was run."""
    about = document("headline")
    for entry in about["sets"]:
        assert committed.count(f"| {entry['name']} |") >= 1
    for tool in about["tools"].values():
        assert f"{tool['name']} {tool['version']}" in committed


@pytest.mark.slow
def test_page_is_regenerated_to_the_letter(committed, tmp_path):
    """The command writes the committed page."""
    fresh = tmp_path / "validation.md"
    write(fresh)
    assert fresh.read_text(encoding="utf-8") == committed, STALE


# Sets of rows ---------------------------------------------------------------------------------


def test_patterns_must_all_match():
    """A record belongs where every pattern is found; least values bound plan fields."""
    row = record()
    assert belongs(row, {"source": "paper", "chip": "a100", "plan": {"tp": 8}})
    assert not belongs(row, {"source": "paper", "chip": "h100"})
    assert not belongs(row, {"plan": {"tp": 9}})
    assert not belongs(row, {"plan": {"dp": 2}})
    assert belongs(row, {"plan": {"seq": 2048}}, seq=2048)
    assert not belongs(row, {"plan": {"seq": 2049}}, seq=2048)


def test_errors_of_a_set_by_hand():
    """11 of 10 s is 10 %; 12 of 10 tokens/s is a time of 10/12, 16.7 % short: mean 13.3 %."""
    rate = record(predicted=12.0, unit="tokens/s/device")
    assert mean_error_pct([record(), rate]) == pytest.approx((10.0 + 100.0 / 6.0) / 2.0)
    assert mean_error_pct([record()], "baseline") == pytest.approx(20.0)
    assert mean_error_pct([]) is None


@pytest.mark.parametrize(
    ("fields", "missed"),
    [({}, False), ({"measured": 8.9}, True), ({"error_pct": -15.1}, True)],
)
def test_a_miss_is_outside_the_interval_or_large(fields, missed):
    """Inside 9 to 12 s and under 15 % is no miss."""
    assert is_missed(record(**fields)) == missed


def test_a_miss_takes_the_first_reason_and_none_is_said():
    """Reasons are tried in order; what fits none stands under none."""
    rows = [
        record(id="a", error_pct=20.0),
        record(id="b", error_pct=20.0, source="other"),
        record(id="c"),
    ]
    reasons = [{"source": "paper", "reason": "first"}, {"chip": "a100.", "reason": "second"}]
    found = misses(rows, reasons, {})
    assert [(why, [row["id"] for row in group]) for why, group in found] == [
        ("first", ["a"]),
        (None, ["b"]),
    ]


def test_a_missed_aim_is_bold():
    """An error of 10 % misses an aim of 5 % and meets one of 12 %."""
    entry = {"name": "set", "aim": {"kernels": 5, "left_out": 12}}
    report = {"records": [record(fair_baseline=10.0)]}
    errors = set_errors(report, {"source": "paper"})
    cells = headline_cells(entry, errors, errors)
    assert cells[2:6] == ("**10.0**", "5", "10.0", "12")
