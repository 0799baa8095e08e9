"""Which plan, and which hardware, should I choose?

Names are resolved when first used: the command line imports this package to print its help, and
must not pay for the evaluator then.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from search.plans import PlanSearchResult, best_plans, search_plans

__all__ = ["PlanSearchResult", "best_plans", "search_plans"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module("search.plans"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
