"""A few turns with recall, in processes that are killed: see test_recall_agent.py.

Takes a list of jobs `[folder, turns, failpoints]` as JSON, forks a process for each, one after
another, and prints how it ended as a number.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from keepwell import (
    AgentSpec,
    FullTextRetriever,
    FunctionModel,
    NoCounter,
    RecallProvider,
    Runtime,
    approx_token_count,
)
from keepwell.actors import failpoint


async def run(folder: str, turns: int) -> None:
    async with Runtime(
        os.path.join(folder, "data"), counter=NoCounter(), durability="process"
    ) as runtime:
        retriever = FullTextRetriever(runtime.store, os.path.join(folder, "recall"))
        await runtime.start_child(retriever.child_spec())
        memory = RecallProvider(runtime.store, retriever, 60, count_tokens=approx_token_count)
        agent = await runtime.spawn(AgentSpec(FunctionModel(lambda _: "noted"), memory=memory), "c")
        for number in range(turns):
            await agent.run(f"the dog number {number} has the name w{number}", turn_id=f"t{number}")
        log = await runtime.store.read("c")
        await retriever.retrieve("c", log, "", upto=1, limit=1)
        hits = await retriever.retrieve("c", log, "dog", upto=len(log), limit=1_000)
        users = [n for n, record in enumerate(log) if record.message.role == "user"]
        found = sorted(hit.place for hit in hits.hits)
        print(json.dumps({"users": users, "found": found, "note": hits.note}), flush=True)


def main(jobs: list[Any]) -> None:
    for folder, turns, failpoints in jobs:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                failpoint._actions = failpoint.parse(failpoints) if failpoints else None
                asyncio.run(run(folder, turns))
                code = 0
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
