"""Runs the contenders of a question in interleaved rounds."""

from __future__ import annotations

import gc
from collections.abc import Callable

from .benchmark import Contender, Question, Result, Sample, Scale, Stopwatch

Progress = Callable[[str], None]


def measure(
    question: Question, scale: Scale, progress: Progress, *, warm_up: bool = True
) -> dict[str, Result]:
    """Return the result of each contender of `question` by name.

    After one small round each for warming up (imports, caches, thread pools) the contenders take
    turns, so that a slow minute of the machine is shared by all. A contender that raises is out:
    its result says so, the others go on.
    """
    results = {
        contender.name: Result(contender, missing=contender.missing)
        for contender in question.contenders
    }
    running = [contender for contender in question.contenders if not contender.missing]
    samples: dict[str, list[Sample]] = {contender.name: [] for contender in running}
    rounds = question.rounds or scale.rounds
    for turn in range(0 if warm_up and question.warm_up else 1, rounds + 1):
        for contender in tuple(running):
            if len(samples[contender.name]) >= (contender.rounds or rounds):
                continue
            warming_up = turn == 0
            if warming_up and contender.fresh:
                continue
            progress(f"{question.name}: {contender.name}, "
                     + ("warming up" if warming_up else f"round {turn} of {rounds}"))
            operations = max(1, contender.operations // 10) if warming_up else contender.operations
            try:
                sample = _round(contender, operations)
            except Exception as error:
                running.remove(contender)
                del samples[contender.name]
                results[contender.name] = Result(
                    contender, missing=f"failed: {type(error).__name__}: {error}", failed=True
                )
            else:
                if not warming_up:
                    samples[contender.name].append(sample)
    gc.unfreeze()
    for contender in running:
        results[contender.name] = Result(contender, tuple(samples[contender.name]))
    return results


def _round(contender: Contender, operations: int) -> Sample:
    # What others have imported or left (an SDK's million objects) is not walked at this one's cost.
    gc.collect()
    gc.freeze()
    watch = Stopwatch()
    figures = contender.run(watch, operations) or {}
    return Sample(operations, watch.wall, watch.cpu, figures)
