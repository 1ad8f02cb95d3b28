"""The Starlette example with a model that the tests can hold; run as a program.

Questions: `hold NAME` streams half of the answer, makes the file NAME.held in the data directory,
and waits for the file NAME; any other is answered word by word, with a tool call in between if it
has the word `look` in it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn

from keepwell import AgentSpec, Message, ModelReply, ModelRequest, Runtime, ToolCall, service, tool
from keepwell.agent.function_model import make_reply
from keepwell.agent.model import TextDelta
from keepwell.stores import sweep

FOLDER = Path(os.environ["DATA_DIR"])
PAUSE = float(os.environ.get("PAUSE", "0"))
GRACE = float(os.environ.get("GRACE", "20"))


def answer(request: ModelRequest) -> Message:
    question = next(m.text for m in reversed(request.messages) if m.role == "user")
    if "look" in question and request.messages[-1].role == "user":
        return Message("assistant", "let me see", [ToolCall("c1", "look", {"at": question})])
    seen = [m for m in request.messages if m.role != "tool" and not m.tool_calls]
    return Message("assistant", f"answer to {question} seeing {len(seen)} messages")


class Held:
    """A model that speaks in words and stops in the middle if it is told to."""

    name = "held"

    async def complete(self, request: ModelRequest) -> ModelReply:
        reply: ModelReply | None = None
        async for item in self.stream(request):
            if isinstance(item, ModelReply):
                reply = item
        assert reply is not None
        return reply

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        message = answer(request)
        words = message.text.split(" ")
        for n, word in enumerate(words):
            if n == len(words) // 2 and words[2:3] == ["hold"]:
                name = words[3]
                (FOLDER / f"{name}.held").touch()
                while not (FOLDER / name).exists():  # noqa: ASYNC110 -- another process tells
                    await asyncio.sleep(0.01)
            await asyncio.sleep(PAUSE)
            yield TextDelta(word if n == 0 else f" {word}")
        yield make_reply(message, request, self.name)


@tool(idempotent=True)
async def look(at: str) -> str:
    """Look."""
    await asyncio.sleep(PAUSE)
    return f"seen: {at}"


def load_example() -> Any:
    path = Path(__file__).parents[2] / "examples" / "starlette_app.py"
    spec = importlib.util.spec_from_file_location("starlette_app", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.spec = AgentSpec(Held(), tools=[look])
    return module


if __name__ == "__main__":
    sweep.ID_LIFE = float(os.environ.get("ID_LIFE", sweep.ID_LIFE))
    example = load_example()
    example.runtime_of_service = service.lifespan(
        lambda: Runtime(FOLDER / "data"), drain_timeout=GRACE
    )
    uvicorn.run(example.app, port=0, access_log=False, timeout_graceful_shutdown=int(GRACE))
