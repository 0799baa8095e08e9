"""Step times of Korthikanti et al. (arXiv 2205.05198), Table 5, beside what the tool predicts.

Nothing is fitted on training runs: kernels are calibrated on kernel measurements, collectives on
collective measurements. Calculon's column is the one that its authors publish as its validation.

Run: python examples/korthikanti_table5.py
"""

from __future__ import annotations

from typing import Any

from dse.validate.published import validate

TABLE_5 = tuple(f"KOR-{number:04d}" for number in range(1, 9))


def rows() -> list[dict[str, Any]]:
    """The eight rows of the table, predicted and measured."""
    records = {record["id"]: record for record in validate(calibration="kernels-only")["records"]}
    return [records[name] for name in TABLE_5]


def main() -> None:
    """Print the table and its mean absolute error."""
    found = rows()
    print(
        f"{'row':<10}{'model':<16}{'measured s':>11}{'predicted s':>12}{'error %':>9}{'line %':>8}"
    )
    for row in found:
        line = 100.0 * (row["baseline"] / row["measured"] - 1.0)
        model = str(row["resolved"]["model"])
        print(
            f"{row['id']:<10}{model[:15]:<16}{row['measured']:>11.2f}{row['predicted']:>12.2f}"
            f"{row['error_pct']:>9.1f}{line:>8.1f}"
        )
    mean = sum(abs(row["error_pct"]) for row in found) / len(found)
    lines = sum(abs(row["baseline"] / row["measured"] - 1.0) for row in found) / len(found)
    print(f"mean absolute error {mean:.1f} %; half of peak times the bubble {100 * lines:.1f} %")


if __name__ == "__main__":
    main()
