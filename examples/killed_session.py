"""A session whose process is killed in mid-turn, and goes on in the next one.

The order desk numbers what it sells. The first process is killed (SIGKILL: nothing is cleaned up)
while it is at order 3; the second opens the same session and sends all orders again, as a client
would that never got its answers. Each order has been numbered exactly once.
"""

import asyncio
import os
import signal
import sys
import tempfile
from typing import Any

from keepwell import Runtime, scan

ORDERS = ["tea", "coffee", "cocoa", "milk"]


async def number_it(order: str, sold: list[str] | None) -> Any:
    """One turn: the carrier is what was sold so far, the output the order's number."""
    if order == "cocoa" and os.environ.get("KILLED_AT_COCOA"):
        os.kill(os.getpid(), signal.SIGKILL)
    sold = [*(sold or []), order]
    return sold, f"{order} is number {len(sold)}"


desk = scan(number_it)


async def serve(data_dir: str) -> None:
    async with Runtime(data_dir) as runtime:
        waiting = await runtime.pending_sessions()
        handle = await runtime.open_session(desk, "desk")
        if waiting:
            print("found with orders waiting:", *waiting)
        for order in ORDERS:
            outcome = await handle.request(order, idempotency_key=f"order {order}")
            print(f"  {outcome.outputs[0]}")
        state = await handle.state()
        print("sold, each once:", ", ".join(state.carrier))
        numbers = [event.seq async for event in handle.events(follow=False) if event.is_emit()]
        assert state.carrier == ORDERS and numbers == [1, 2, 3, 4]


async def main() -> None:
    if len(sys.argv) > 1:
        await serve(sys.argv[1])
        return
    with tempfile.TemporaryDirectory() as data_dir:
        for killed in ("yes", ""):
            print("a process begins")
            process = await asyncio.create_subprocess_exec(
                sys.executable, __file__, data_dir, env={**os.environ, "KILLED_AT_COCOA": killed}
            )
            code = await process.wait()
            print("  it was killed" if code == -signal.SIGKILL else "  it has ended")


asyncio.run(main())
