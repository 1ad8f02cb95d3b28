"""`python -m benchmarks` is `keepwell bench`."""

import sys

from keepwell.cli import main

raise SystemExit(main(["bench", *sys.argv[1:]]))
