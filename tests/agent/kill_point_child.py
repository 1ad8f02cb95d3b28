"""Turns that are killed at some point, then resumed, for test_process_kill.py.

Arguments: a directory, and the cases as JSON: [[point, hit, idempotent], ...]. For each case a
process of its own is forked off (before anything has been started here) that runs a turn and is
killed at that hit of the failpoint, then one that resumes it. Prints a line of JSON a case: how the
first ended, the answer, the log, the result types, how often the tools ran.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from typing import Any

from keepwell.actors import failpoint as failpoints
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
        return Message("assistant", None, [ToolCall("x", "work", {"name": "x"}),
                                           ToolCall("y", "work", {"name": "y"})])  # fmt: skip
    return "done"


async def turn(directory: str, idempotent: bool, kill_at: tuple[str, int] | None) -> dict[str, Any]:
    ran = os.open(os.path.join(directory, "ran.log"), os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600)

    @tool(idempotent=idempotent)
    async def work(name: str) -> str:
        """Leave a trace."""
        os.write(ran, name.encode())
        failpoint("in_tool")
        await asyncio.sleep(0)
        return f"worked on {name}"

    async with Runtime(os.path.join(directory, "store"), counter=NoCounter()) as runtime:
        agent = await runtime.spawn(AgentSpec(FunctionModel(reply), tools=[work]), "c")
        actions = {}
        if kill_at is not None:
            point, hit = kill_at
            actions[point] = failpoints.on_hit(hit, failpoints.kill_process)
        with failpoints.active(actions):
            result = await agent.run("go", turn_id="T")
        log = tuple(await runtime.store.read("c", marks=True))
        return {
            "text": result.text,
            "again": (await agent.run("go", turn_id="T")) == result,
            "seqs": [r.seq for r in log],
            "roles": [r.message.role for r in log if r.message is not None],
            "results": {
                r.message.tool_call_id: error_type_of(r.message.content)
                for r in log if r.message is not None and r.message.role == "tool"
            },
            "ended": sum(1 for r in log if r.mark and "ended" in r.mark),
            "ran": os.pread(ran, 100, 0).decode(),
        }  # fmt: skip


def forked(directory: str, idempotent: bool, kill_at: tuple[str, int] | None) -> int:
    """Run the turn in a process of its own; its exit code, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            outcome = asyncio.run(turn(directory, idempotent, kill_at))
            with open(os.path.join(directory, "outcome.json"), "w") as file:
                json.dump(outcome, file)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(root: str, cases: list[tuple[str, int, bool]]) -> None:
    for number, (point, hit, idempotent) in enumerate(cases):
        directory = os.path.join(root, str(number))
        os.mkdir(directory)
        first = forked(directory, idempotent, (point, hit))
        second = forked(directory, idempotent, None)
        outcome = {}
        if second == 0:
            with open(os.path.join(directory, "outcome.json")) as file:
                outcome = json.load(file)
        print(json.dumps({"first": first, "second": second, **outcome}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
