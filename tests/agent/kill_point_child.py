"""One turn, for test_process_kill.py: killed at some point the first time, then resumed.

Prints a line of JSON when the turn has ended: the answer, the result types, how often tools ran.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from keepwell.actors.failpoint import failpoint
from keepwell.agent.function_model import FunctionModel
from keepwell.agent.spec import AgentSpec
from keepwell.agent.tool import tool
from keepwell.agent.tool_result import error_type_of
from keepwell.runtime import Runtime
from keepwell.stores import NoCounter
from keepwell.stores.message import Message, ToolCall


def reply(request: Any) -> Any:
    failpoint("in_model")
    if request.messages[-1].role == "user":
        return Message("assistant", None, [ToolCall("x", "once", {}), ToolCall("y", "again", {})])
    return "done"


async def main(data_dir: str) -> None:
    ran = os.open(os.path.join(data_dir, "ran.log"), os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600)

    @tool
    async def once() -> str:
        """Leave a trace."""
        os.write(ran, b"x")
        failpoint("in_tool")
        return "done"

    @tool(idempotent=True)
    async def again() -> str:
        """Leave a trace."""
        os.write(ran, b"y")
        await asyncio.sleep(0)
        return "done"

    async with Runtime(os.path.join(data_dir, "store"), counter=NoCounter()) as runtime:
        agent = await runtime.spawn(AgentSpec(FunctionModel(reply), tools=[once, again]), "c")
        result = await agent.run("go", turn_id="T")
        log = tuple(await runtime.store.read("c", marks=True))
        outcome = {
            "text": result.text,
            "seqs": [r.seq for r in log],
            "roles": sorted(r.message.role for r in log if r.message is not None),
            "results": {
                r.message.tool_call_id: error_type_of(r.message.content)
                for r in log if r.message is not None and r.message.role == "tool"
            },
            "ended": sum(1 for r in log if r.mark and "ended" in r.mark),
            "ran": os.pread(ran, 100, 0).decode(),
        }  # fmt: skip
        os.write(1, json.dumps(outcome).encode())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
