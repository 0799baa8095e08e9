"""`python -m search.cli`: the command where no script is installed."""

import sys

from search.cli.app import main

sys.exit(main())
