"""`dse search run`: the hardware that trains these models best."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from cyclopts import App

from search.cli.parse import Output, Whole

if TYPE_CHECKING:
    from search.result import Entry, SearchResult
    from search.study import Progress

INTERRUPTED = 130
SHOWN = 12

search = App(
    name="search",
    help="Search hardware: chip, network and plan together.",
    help_format="plaintext",
)


@search.command
def run(
    space: str,
    /,
    *,
    trials: Whole | None = None,
    sampler: str | None = None,
    seed: Whole = 0,
    study: str | None = None,
    storage: str | None = None,
    workers: Whole | None = None,
    dump: str | None = None,
    plot: str | None = None,
    output: Output = Output(),  # noqa: B008 - frozen, cyclopts' way to share flags
) -> int:
    """Find the designs of SPACE that train its models best, each at its own best plan.

    Trials are kept in ./STUDY.journal; the same command goes on where it stopped. Ctrl-C ends
    after the running batch.

    Parameters
    ----------
    space
        A YAML file of kind: space.
    trials
        Designs to look at; all of a space that this covers.
    sampler
        tpe, nsga2, cmaes, gp, qmc or random; by rule if left out.
    seed
        Of every draw.
    study
        Name of the study; the file's stem if left out.
    storage
        A journal file, or the URL of a database, instead of ./STUDY.journal.
    workers
        Processes that judge designs; the processor's cores if left out.
    dump
        Write every design looked at to this file: .csv or .json.
    plot
        Draw the front, or the history of one objective, to this file: .svg, .png or .pdf.
    """
    from hwmodels.errors import ConfigError
    from search.cli.output import deliver, refuse_existing
    from search.hardware import explore
    from search.report_front import check_plot, plot_front, write_designs
    from search.space_file import load_space

    for path, flag in ((output.output, "--output"), (dump, "--dump"), (plot, "--plot")):
        refuse_existing(path, flag=flag, force=output.force)
    if dump is not None and Path(dump).suffix not in (".csv", ".json"):
        raise ConfigError(f"--dump {dump!r} is neither .csv nor .json", field="--dump", value=dump)
    if plot is not None:
        check_plot(plot)
    for flag, count in (("--workers", workers), ("--trials", trials)):
        if count == 0:
            raise ConfigError(f"{flag}: zero is not allowed", field=flag, value=count)
    known = load_space(space)
    name = study or Path(space).stem
    if not name or "/" in name or name.startswith("."):
        raise ConfigError(f"{name!r} is not a name for a study", field="--study", value=name)
    kept = storage or f"{name}.journal"
    with finishing_the_batch() as stop, _progress(quiet=output.quiet) as progress:
        result = explore(
            known,
            seed=seed,
            trials=trials,
            sampler=sampler,
            study=name,
            storage=kept,
            workers=workers if workers is not None else cores(),
            restart=output.force,
            progress=progress,
            stop=stop,
        )
    if dump is not None:
        write_designs(result, dump)
    if plot is not None:
        plot_front(result, plot)
    data = result.model_dump()
    deliver(data, output, headline(result) if output.quiet else told(result))
    if result.interrupted:
        print(f"interrupted; go on with: {_command()}", file=sys.stderr)
        return INTERRUPTED
    return 0


def cores() -> int:
    """Cores that this process may use."""
    import os

    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _command() -> str:
    import shlex

    words = [word for word in sys.argv[1:] if word != "--force"]
    return "dse " + shlex.join(words)


@contextmanager
def finishing_the_batch() -> Iterator[Callable[[], bool]]:
    """A question that becomes true after Ctrl-C; a second Ctrl-C interrupts at once."""
    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        print("finishing the batch; Ctrl-C again to drop it", file=sys.stderr)

    try:
        before = signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread, where signals are not ours to take
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """A bar with rate and time left, on a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("designs"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:.0f}/s"),
        TimeRemainingColumn(),
        TextColumn("best {task.fields[best]}"),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("designs", total=None, rate=0.0, best="none yet")

    def show(now: Progress) -> None:
        bar.update(
            task,
            completed=now.designs,
            total=now.trials,
            rate=now.judged / max(now.elapsed_s, 1e-9),
            best="none yet" if now.best is None else f"{now.best:.5g}",
        )

    with bar:
        yield show


# Words ---------------------------------------------------------------------------------------


def headline(result: SearchResult) -> str:
    """The winner and what it reaches."""
    best = result.best
    named = ", ".join(f"{key} {value}" for key, value in best.parameters.items())
    reached = "; ".join(_value(result, best, o.name) for o in result.objectives)
    return f"{best.name} ({named}): {reached}"


def told(result: SearchResult) -> str:
    """The answer in three lines, then the tables."""
    best = result.best
    counts = ", ".join(f"{count:,} by {name}" for name, count in result.infeasible.items())
    left = ", ".join(
        f"{name} {100 * share:.0f} %"
        for name, share in sorted(best.slack.items(), key=lambda item: item[1])[:3]
    )
    lines = [
        headline(result),
        f"Bound by {best.models[0].bottleneck} (1 % more: {_gains(result)}); "
        f"closest limits: {left} left",
        *_against(result),
        f"{result.unique:,} of {result.space_size:,} designs by {result.sampler} "
        f"({result.why_sampler}); {result.feasible:,} feasible"
        + (f", broken: {counts}" if counts else "")
        + f"; {result.elapsed_s:.1f} s, each at its exact best plan ({result.plan_space})",
        "",
        _front_table(result),
    ]
    return "\n".join(lines)


def _gains(result: SearchResult) -> str:
    """The three resources whose growth shortens a step most, in per cent of its time."""
    slopes = next(iter(result.elasticities.values()))
    named = sorted(slopes.items(), key=lambda item: item[1])[:3]
    return ", ".join(
        f"{name.replace('_', ' ').replace('.', ' ')} {slope:+.2f} %" for name, slope in named
    )


def _against(result: SearchResult) -> list[str]:
    best = result.best
    if not best.better_than:
        return []
    first = result.objectives[0].name
    parts = []
    for entry in result.compared:
        ratio = best.values[first] / entry.values[first]
        chance = best.better_than[entry.name][first]
        parts.append(f"{ratio:.2f} of {entry.name} (better with P = {chance:.2f})")
    return [f"Its {first.replace('_', ' ')} is {', '.join(parts)}"]


def _front_table(result: SearchResult) -> str:
    from search.cli.output import columns, seconds
    from search.cli.summary import plan_text

    objectives = [o.name for o in result.objectives]
    headers = (
        "",
        *(f"{o.name.replace('_', ' ')} {o.unit}" for o in result.objectives),
        "step",
        "MFU %",
        "mm2",
        "W",
        "USD",
        "design, plan",
    )
    rows = []
    for entry in (*result.front[:SHOWN], *result.compared):
        model = entry.models[0]
        named = " ".join(f"{key}={value}" for key, value in entry.parameters.items())
        rows.append(
            (
                entry.name,
                *(f"{entry.values[name]:.5g}" for name in objectives),
                seconds(model.step_time_s),
                f"{100 * model.mfu:.1f}",
                _range(entry.area_mm2),
                _range(entry.tdp_w),
                _range(entry.price_usd),
                f"{named}; {plan_text(model.plan)}",
            )
        )
    title = "Front and real machines, each at its own best plan; median (10 to 90 %)"
    table = columns(headers, rows, title=title)
    more = len(result.front) - SHOWN
    return table + (f"\n{more} more designs of the front in --json" if more > 0 else "")


def _range(amount: Any) -> str:
    if amount.median is None:
        return "unknown"
    if amount.low == amount.high:
        return f"{amount.median:.0f}"
    return f"{amount.median:.0f} ({amount.low:.0f}-{amount.high:.0f})"


def _value(result: SearchResult, entry: Entry, name: str) -> str:
    unit = next(o.unit for o in result.objectives if o.name == name)
    low, high = entry.values_80[name]
    return f"{entry.values[name]:.5g} {unit} (80 %: {low:.4g} to {high:.4g})"
