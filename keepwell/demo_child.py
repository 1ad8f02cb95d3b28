"""The demo's other process: it holds a conversation until it is killed in the middle of a turn.

It speaks JSON lines on standard output: every record as soon as it is acknowledged, and the moment
at which it is ready to be killed.

    python -m keepwell.demo_child DATA_DIR LEDGER CONVERSATION MODEL
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path

from . import demo_story as story
from .agent.events import ModelEnded, TextDelta, ToolEnded, TurnEnded, TurnStarted
from .runtime import Runtime

TURN_ID = "demo-killed-turn"


def _say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _wait_for_the_kill(where: str) -> None:
    """Say that the middle of the turn is reached, and stay there."""
    _say(ready=where)
    threading.Event().wait()


async def _main(data_dir: str, ledger: str, conversation_id: str, wanted: str) -> None:
    model, _ = story.choose_model(wanted)
    note = story.ledger(Path(ledger))
    spec = story.spec(model, note, on_add=lambda: _wait_for_the_kill("in its tool"))
    async with Runtime(data_dir=data_dir) as runtime:
        agent = await runtime.spawn(spec, conversation_id)
        async for event in agent.stream(story.KILL_QUESTION, turn_id=TURN_ID):
            if isinstance(event, (TurnStarted, ModelEnded, ToolEnded, TurnEnded)):
                # These come after the commit: what the log holds now was acknowledged.
                for record in await runtime.store.read(conversation_id, marks=True):
                    _say(record=story.record_key(record))
            if isinstance(event, TextDelta):
                _wait_for_the_kill("in the middle of a sentence")


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:5]))
