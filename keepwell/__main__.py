"""`python -m keepwell` is the command `keepwell`."""

from .cli import main

raise SystemExit(main())
