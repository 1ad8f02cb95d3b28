"""The process that test_process_kill.py kills: 32 conversations, turn after turn, until it dies.

Each acknowledged turn is reported on stdout as `conversation turn_id`; each run of the tool, which
is not idempotent, as a line in `ran.log`. Started again on the same directory it first lets every
unfinished turn be resumed, then goes on with the next.
"""

from __future__ import annotations

import asyncio
import os
import sys

from keepwell.agent.agent import Agent
from keepwell.agent.function_model import FunctionModel
from keepwell.agent.spec import AgentSpec
from keepwell.agent.tool import tool
from keepwell.agent.tool_context import ToolContext
from keepwell.runtime import Runtime
from keepwell.stores import NoCounter
from keepwell.stores.message import Message, ToolCall

CONVERSATIONS = 32


def reply(request: object) -> object:
    messages = request.messages  # type: ignore[attr-defined]  # a ModelRequest
    if messages[-1].role == "user":
        return Message("assistant", None, [ToolCall("x", "work", {}), ToolCall("y", "work", {})])
    return f"answer to {messages[-4].content}"


async def main(data_dir: str) -> None:
    ran = os.open(os.path.join(data_dir, "ran.log"), os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    @tool
    async def work(context: ToolContext) -> str:
        """Leave a trace."""
        os.write(ran, f"{context.conversation_id} {context.turn_id} {context.call_id}\n".encode())
        await asyncio.sleep(0)
        return "done"

    spec = AgentSpec(FunctionModel(reply), tools=[work])
    async with Runtime(os.path.join(data_dir, "store"), counter=NoCounter()) as runtime:

        async def converse(number: int) -> None:
            conversation = f"c{number}"
            log = await runtime.store.read(conversation, marks=True)
            done = [int(r.turn_id) for r in log if r.turn_id is not None]
            agent: Agent = await runtime.spawn(spec, conversation)
            turn = max(done, default=1)  # the newest turn: completed before, or resumed now
            while True:
                result = await agent.run(f"question {turn}", turn_id=str(turn))
                assert result.text == f"answer to question {turn}", result
                os.write(1, f"{conversation} {turn}\n".encode())
                turn += 1

        await asyncio.gather(*(converse(number) for number in range(CONVERSATIONS)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
