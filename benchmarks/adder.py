"""The turn that every contender does: a question, a call of `add`, and the answer.

The model answers without delay and the tool adds two numbers: what is measured is the framework.
"""

from __future__ import annotations

from typing import Any

from keepwell.agent.model import ModelReply, ModelRequest, Usage
from keepwell.stores import Message, ToolCall

QUESTION = "What is the sum of one and two, and of which numbers is it the sum as well?"
ANSWER = "The sum of one and two is three, which is also the sum of four and minus one."


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Adder:
    """The model: calls `add`, then answers."""

    name = "adder"

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Answer at once."""
        if request.messages[-1].role == "tool":
            return ModelReply(Message("assistant", ANSWER), Usage(50, 20), "stop", "adder")
        call = ToolCall(f"c{request.step}", "add", {"a": 1, "b": 2})
        return ModelReply(Message("assistant", None, [call]), Usage(50, 20), "tool_calls", "adder")

    def stream(self, request: ModelRequest) -> Any:
        """Nobody asks for it here."""
        raise NotImplementedError


async def converse(agent: Any, turns: int) -> None:
    """Do `turns` turns, one after another."""
    for _ in range(turns):
        result = await agent.run(QUESTION)
        assert result.text == ANSWER
