"""The command line: `dse show | evaluate | plan | compare`."""

from search.cli.app import main

__all__ = ["main"]
