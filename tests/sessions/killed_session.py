"""Runs a durable session in processes that are killed; a server forks one for each line it reads.

A line is JSON: {"data_dir", "failpoints", "messages", "kill_after"}. The forked process, which has
imported everything and started nothing, sends the messages to the session under their keys, closes
it, and prints what was acknowledged; it is killed at its failpoint, or after so many seconds. The
server then prints how it ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from typing import Any

from keepwell import FunctionModel, NoCounter, Runtime, flow
from keepwell.actors import failpoint
from keepwell.memory.context_policy import ContextPolicy
from keepwell.sessions import current_turn, scan, session


def step(message: Any, carrier: Any) -> Any:
    current_turn().emit(["log", message], "log")
    return [*(carrier or []), message], message


@session(extra_channels=["log"])
async def live(s: Any) -> None:
    while True:
        message = await s.recv()
        s.emit(["log", message], "log")
        s.carrier = [*(s.carrier or []), message]
        s.emit(message)


body = flow.seq(
    flow.recv("in"),
    flow.par(flow.arr(lambda d: [*(d["carrier"] or []), d["msg"]]), flow.arr(lambda d: d["msg"])),
    flow.seq(flow.emit("log"), flow.par(
        flow.ident(),
        flow.seq(flow.arr(lambda pair: str(pair[1])),
                 flow.think(FunctionModel(lambda request: "ok"), "",
                            ContextPolicy("whole_session", 10_000))),
    )),
    flow.arr(lambda pairs: (pairs[0][0], pairs[0][1])),
)  # fmt: skip

SESSIONS = {
    "scan": scan(step, extra_channels=["log"]),
    "coroutine": live,
    "flow": scan(body, extra_channels=["log"]),
}


async def run(job: dict[str, Any]) -> None:
    data_dir, style = job["data_dir"], job["style"]
    async with Runtime(data_dir, durability="process", counter=NoCounter()) as runtime:
        handle = await runtime.open_session(SESSIONS[style], "s", max_deliveries=10_000)
        for n in range(job["messages"]):
            ack = await handle.send(n, idempotency_key=f"k{n}")
            assert ack.seq == n + 1, ack
            os.write(1, b"ack %d\n" % n)  # in one piece, or not at all
        closed = await handle.close("all sent", timeout=None)
        assert closed == ("all sent", 0), closed


def child(job: dict[str, Any]) -> None:
    failpoint._actions = failpoint.parse(job["failpoints"]) if job["failpoints"] else None
    if job["kill_after"]:
        timer = threading.Timer(job["kill_after"], os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()
    asyncio.run(run(job))


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                child(json.loads(line))
                code = 0
            except BaseException as error:
                os.write(1, f"error {error!r}\n".encode())
            finally:
                os._exit(code)
        status = os.waitpid(pid, 0)[1]
        os.write(1, b"end %d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
