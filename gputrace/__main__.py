"""`python -m gputrace`: the command line, for where its script is not on PATH."""

from __future__ import annotations

import sys

from gputrace.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
