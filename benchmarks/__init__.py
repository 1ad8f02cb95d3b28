"""Benchmarks: one question a file, against what one would use instead.

`python -m benchmarks` (from a checkout) and `keepwell bench` run them. A benchmark is a module here
whose docstring says what it asks, how, and what it does not say, with a function
`questions(scale) -> Sequence[Question]`; `catalog.py` finds it by that.

All contenders of a question do the same work in the same process, in interleaved rounds: what the
machine does meanwhile hits all of them. Believe ratios of one run, not absolute figures of two.
"""
