"""Three packages whose imports point one way, and what `import dse` must not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dse
import hwmodels
import search

pytestmark = pytest.mark.fast

BELOW = {"hwmodels": (), "dse": ("hwmodels",), "search": ("hwmodels", "dse")}
"""A package and those it may import besides itself."""
ROOTS = {module.__name__: Path(module.__file__).parent for module in (hwmodels, dse, search)}
HEAVY = ("torch", "optuna", "networkx", "matplotlib", "pandas", "rich", "cyclopts")
FILES = [(name, path) for name, root in ROOTS.items() for path in sorted(root.rglob("*.py"))]


def imported(source: str) -> Iterator[str]:
    """First parts of everything that a module imports, at any depth of its code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield (node.module or "").partition(".")[0]


def test_the_walk_sees_imports_of_every_kind() -> None:
    """Also those inside functions and type-checking blocks."""
    source = "import a.b\nfrom c.d import e\ndef f():\n    import g\nif X:\n    from h import i\n"
    assert sorted(imported(source)) == ["a", "c", "g", "h"]


def test_there_is_something_to_walk() -> None:
    """Each package has modules."""
    assert {name for name, _ in FILES} == set(BELOW)
    assert len(FILES) > 60


@pytest.mark.parametrize(
    ("package", "path"), FILES, ids=[f"{n}/{p.relative_to(ROOTS[n])}" for n, p in FILES]
)
def test_arrows_point_one_way(package: str, path: Path) -> None:
    """hwmodels <- dse <- search."""
    found = set(imported(path.read_text(encoding="utf-8")))
    above = set(BELOW) - {package, *BELOW[package]}
    assert not found & above


@pytest.mark.parametrize("package", ["hwmodels", "dse"])
def test_lower_packages_name_no_front_end(package: str) -> None:
    """Optuna, rich, cyclopts, matplotlib and pandas are not even named inside a function."""
    for name, path in FILES:
        if name == package:
            found = set(imported(path.read_text(encoding="utf-8")))
            assert not found & {"optuna", "rich", "cyclopts", "matplotlib", "pandas"}, path.name


@pytest.mark.parametrize("package", ["hwmodels", "dse"])
def test_import_is_light(package: str) -> None:
    """A fresh interpreter loads none of the heavy libraries; its seconds are printed."""
    code = (
        "import sys, time\n"
        "start = time.perf_counter()\n"
        f"import {package}\n"
        "print(time.perf_counter() - start)\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOTS["dse"].parent,
    )
    seconds, modules = run.stdout.splitlines()
    print(f"import {package}: {float(seconds):.3f} s")
    loaded = set(modules.split())
    assert package in loaded
    assert not loaded & set(HEAVY)
    assert not loaded & (set(BELOW) - {package, *BELOW[package]})
