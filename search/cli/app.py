"""Which commands there are, and what becomes of their errors.

Commands are named by import path and loaded when called, so that help costs nothing else. Every
error of the project leaves by one door: one line on stderr, the same as an object on stdout under
`--json`, and an exit code (0 ok, 1 nothing feasible, 2 bad input, 130 interrupted).
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts import App

    from hwmodels.errors import DseError

OK, INFEASIBLE, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

COMMANDS = {
    "show": "Print a chip, node, cluster or model with its sources; list them without a name.",
    "evaluate": "Price one plan: step time, what bounds it, memory by stage.",
    "plan": "Find the best plan of a model on a cluster, exactly.",
    "compare": "Set two saved results side by side, term by term.",
    "validate": "Judge predictions by published kernels, collectives and training runs.",
    "sensitivity": "Elasticities of a step: what one per cent more of each resource gives.",
    "search": "Search chip, network and plan together: dse search run SPACE.yaml.",
}


HELP = """Decide what hardware, and what parallel plan, to train large networks on.

usage: dse COMMAND ...

{commands}

Each command says more: dse COMMAND --help. For a start:

  dse plan llama-3-70b dgx-h100 --chips 64 --global-batch-size 512
  dse plan path/to/config.json dgx-h100 --chips 64 --global-batch-size 512
  dse show model
"""


def help_text() -> str:
    """What `dse --help` prints; written by hand so that it costs no import."""
    lines = [f"  {name:<13}{text}" for name, text in COMMANDS.items()]
    return HELP.format(commands="\n".join(lines))


def build_app() -> App:
    """The application with its lazily loaded commands."""
    from cyclopts import App

    app = App(
        name="dse",
        help="Decide what hardware, and what parallel plan, to train large networks on.",
        help_format="plaintext",
        version=_version,
        suppress_keyboard_interrupt=False,
    )
    for name, text in COMMANDS.items():
        app.command(f"search.cli.{name}:{name}", name=name, help=text)
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments after the program's name; those of the process where None.

    Returns:
        The exit code.
    """
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the process
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    tokens = list(sys.argv[1:] if argv is None else argv)
    as_json = any(token == "--json" or token.startswith("--json=") for token in tokens)
    try:
        if not tokens or tokens[0] in ("-h", "--help"):
            print(help_text(), end="")
            return OK
        code = build_app()(
            tokens, exit_on_error=False, print_error=False, result_action="return_value"
        )
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # the reader went away; what is still buffered must not fail again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as problem:
        # a full disk or a closed stream is the user's to mend; nothing of ours failed
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print(f"dse: cannot write the result: {problem.strerror or problem}", file=sys.stderr)
        return BAD_INPUT
    except Exception as problem:
        return _report(problem, as_json, tokens)
    return code if isinstance(code, int) else OK


def _report(problem: Exception, as_json: bool, tokens: Sequence[str]) -> int:
    from cyclopts import CycloptsError

    from hwmodels.errors import DseError, InfeasibleError

    if isinstance(problem, CycloptsError):
        from search.cli.parse import usage_error

        problem = usage_error(problem, tuple(COMMANDS), tokens)
    if not isinstance(problem, DseError):
        raise problem
    infeasible = isinstance(problem, InfeasibleError)
    if as_json:
        body = {"infeasible" if infeasible else "error": problem.as_dict()}
        print(json.dumps(_finite(body), allow_nan=False))
    print(f"dse: {_one_line(problem)}", file=sys.stderr)
    return INFEASIBLE if infeasible else BAD_INPUT


def _finite(value: object) -> object:
    """What was given, with infinities and NaN as text: JSON has no numbers for them."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _one_line(problem: DseError) -> str:
    text = " ".join(str(problem).split())
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _version() -> str:
    from hwmodels.version import __version__

    return __version__
