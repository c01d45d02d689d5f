"""`python -m webtorch` is the `webtorch` command."""

from __future__ import annotations

import sys

from webtorch_autoload.command import main

if __name__ == "__main__":
    sys.exit(main())
