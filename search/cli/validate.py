"""`dse validate`: predictions beside what others measured, with every refusal and every miss."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from search.cli.parse import Output

if TYPE_CHECKING:
    from collections.abc import Callable

SUBJECTS = ("kernels", "collectives", "published")
FEW = 20
"""So many refused rows are listed one by one."""
CALIBRATIONS = ("kernels-only", "shipped", "leave-source-out")


def validate(
    what: str,
    /,
    *,
    data: str | None = None,
    calibration: str | None = None,
    plot: str | None = None,
    output: Output = Output(),  # noqa: B008 - frozen, cyclopts' way to share flags
) -> int:
    """Compare predictions with published measurements, source by source.

    Parameters
    ----------
    what
        kernels, collectives, or published (training runs).
    data
        A CSV of your own with the columns of the bundled file, instead of the bundled rows.
    calibration
        Of training runs: kernels-only (no training run used), shipped (levels fitted on published
        runs), or leave-source-out (each row judged without its own family of sources).
    plot
        Draw predictions over measurements to this file (.svg, .png or .pdf; extra [plot]).
    """
    from hwmodels.errors import ConfigError
    from search.cli.output import deliver, refuse_existing

    refuse_existing(output.output, flag="--output", force=output.force)
    _one_of("WHAT", what, SUBJECTS)
    if calibration is not None:
        _one_of("--calibration", calibration, CALIBRATIONS)
        if what != "published":
            raise ConfigError(
                f"--calibration chooses what training runs may teach; {what} use none",
                field="--calibration",
                value=calibration,
            )
    if plot is not None:
        from search.report_front import check_plot

        check_plot(plot)
        refuse_existing(plot, flag="--plot", force=output.force)
    result = _judges()[what](data, calibration or "leave-source-out")
    if plot is not None:
        from search.cli.plot_parity import plot_parity

        plot_parity(what, result, plot)
    deliver(result, output, _told(what, result))
    return 0


def _one_of(field: str, value: str, allowed: tuple[str, ...]) -> None:
    from hwmodels.errors import ConfigError

    if value in allowed:
        return
    near = get_close_matches(value, allowed, n=1)
    raise ConfigError(
        f"{field} {value[:80]!r} is not known",
        field=field,
        value=value[:200],
        allowed=list(allowed),
        hint=f"did you mean {near[0]}?" if near else None,
    )


def _judges() -> dict[str, Callable[[str | None, str], dict[str, Any]]]:
    from pathlib import Path

    def kernels(data: str | None, calibration: str) -> dict[str, Any]:
        from hwmodels.calibration.validate import validate_kernels

        path = None if data is None else Path(data)
        return _headed(validate_kernels(path), data, calibration="shipped")

    def collectives(data: str | None, calibration: str) -> dict[str, Any]:
        from hwmodels.calibration.collective_validate import validate_collectives

        return _headed(validate_collectives(data), data, calibration="shipped")

    def published(data: str | None, calibration: str) -> dict[str, Any]:
        from dse.validate.published import validate as validate_published

        return _headed(validate_published(data, calibration), data, calibration=calibration)  # type: ignore[arg-type]

    return {"kernels": kernels, "collectives": collectives, "published": published}


def _headed(result: dict[str, Any], data: str | None, *, calibration: str) -> dict[str, Any]:
    """The result with the keys that every JSON object of the tool has."""
    import hashlib
    import json
    from pathlib import Path

    from hwmodels.version import __version__

    body = (
        Path(data).read_bytes()
        if data is not None
        else json.dumps(result.get("records", []), default=str).encode()
    )
    return {
        "schema": "ridge-dse/validate/1",
        "version": __version__,
        "calibration": calibration,
        "inputs_sha256": hashlib.sha256(body).hexdigest(),
        "seed": 0,
        "warnings": [],
        **result,
    }


_SCORES = (
    ("rows", "evaluated"),
    ("mean %", "mean_abs_error_pct"),
    ("median %", "median_abs_error_pct"),
    ("bias %", "bias_pct"),
    ("80 % holds", "coverage_80_pct"),
    ("tau", "kendall_tau"),
    ("regret %", "regret_pct"),
    ("line %", "baseline_mean_abs_error_pct"),
    ("fair line %", "fair_baseline_mean_abs_error_pct"),
)


_LINE = {
    "kernels": "line: the roofline at peak.",
    "collectives": "line: bytes over nominal link rates.",
    "published": "line: FLOPs over half of peak times the bubble; fair line: its efficiency "
    "fitted\nper chip family on the other sources.",
}


def _told(what: str, result: Mapping[str, Any]) -> str:

    evaluated, rows = result["evaluated"], result["rows"]
    share = 100.0 * evaluated / rows if rows else 0.0
    lines = [
        f"{what}: {evaluated} of {rows} rows evaluated ({share:.0f} %), "
        f"calibration {result['calibration']}",
        f"mean absolute error {_cell(result, 'mean_abs_error_pct')} %, median "
        f"{_cell(result, 'median_abs_error_pct')} %, bias {_cell(result, 'bias_pct')} %; "
        f"80 % intervals hold {_cell(result, 'coverage_80_pct')} %",
    ]
    if result.get("macro_mean_abs_error_pct") is not None:
        group = "families of sources" if what == "published" else "sources"
        lines.append(f"mean over {group} {_cell(result, 'macro_mean_abs_error_pct')} %")
    if result.get("regret_pct") is not None:
        lines[-1] += (
            f"; regret {_cell(result, 'regret_pct')} %, Kendall tau {_cell(result, 'kendall_tau')}"
        )
    for key, title in (
        ("by_class", "By class"),
        ("by_chip", "By chip"),
        ("by_source", "By source"),
    ):
        groups = result.get(key)
        if groups:
            lines += ["", _groups(groups, title)]
    if result["refused"]:
        lines += ["", *_refusals(what, result)]
    lines += ["", _LINE[what], "Every row is a record under --json."]
    return "\n".join(lines)


def _refusals(what: str, result: Mapping[str, Any]) -> list[str]:
    """Counts by reason with what each means, and the rows themselves where they are few."""
    from search.cli.output import columns

    meanings = _meanings(what, result)
    table = sorted(result["refused"].items(), key=lambda item: -item[1])
    cells = [(count, reason, meanings.get(reason, "")) for reason, count in table]
    lines = [columns(("refused rows", "reason", "meaning"), cells)]
    refused = [record for record in result["records"] if record["status"] == "refused"]
    if len(refused) <= FEW:
        rows = [(r["id"], r["reason"], r.get("detail") or "") for r in refused]
        lines += ["", columns(("refused row", "reason", "what exactly"), rows)]
    return lines


def _meanings(what: str, result: Mapping[str, Any]) -> Mapping[str, str]:
    if what != "published":
        found: Mapping[str, str] = result["refusal_reasons"]
        return found
    from dse.validate.resolve import REASONS

    return REASONS


def _groups(groups: Mapping[str, Mapping[str, Any]], title: str) -> str:
    from search.cli.output import columns

    shown = [
        (head, key)
        for head, key in _SCORES
        if any(group.get(key, group.get("rows")) is not None for group in groups.values())
        and (key == "evaluated" or any(key in group for group in groups.values()))
    ]
    body = [
        (name, *(_cell(group, key) for _, key in shown))
        for name, group in sorted(groups.items())
        if group.get("evaluated", group.get("rows"))
    ]
    return columns((title, *(head for head, _ in shown)), body)


def _cell(group: Mapping[str, Any], key: str) -> str:
    value = group.get(key)
    if value is None and key == "evaluated":
        value = group.get("rows")
    if value is None:
        return "-"
    if key == "kendall_tau":
        return f"{value:.2f}"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
