"""Processes that append under load until they are killed; run by the tests, not collected.

One process imports everything and then forks a writer for each line on its standard input:
`PIPE DIRECTORY CONVERSATIONS SEED DURABILITY POINTS`. It answers with the writer's pid, and with
its exit status when it has ended. A writer prints a line for each acknowledged record to PIPE,
unbuffered: `ack conversation seq text`.
"""

import asyncio
import os
import random
import sys
import traceback

from keepwell.actors import failpoint
from keepwell.stores import DiskStore, NewRecord, NoCounter

TURNS = ((), ("t",), ("t", {"ended": "completed"}))
"""Of no turn, of one that is open, the end of one: what the index of open turns is derived from."""


async def main(path: str, conversations: int, seed: int, durability: str) -> None:
    store = DiskStore(path, counter=NoCounter(), durability=durability, map_size=1 << 20)  # type: ignore[arg-type]  # from argv
    await store.spawn()
    dice = random.Random(seed)

    async def converse(name: str) -> None:
        number = (await store.info(name)).cursor
        run = f"{seed}-{os.getpid()}"
        while True:
            size = dice.choice((1, 1, 1, 2, 5))
            texts = [f"{run}/{name}/{number + i}" + "x" * dice.choice((0, 0, 900))
                     for i in range(size)]
            batch = [NewRecord({"role": "user", "content": text}, *dice.choice(TURNS))
                     for text in texts]
            added = await store.add(name, batch, append_id=f"{run}/{number}")
            os.write(1, "".join(f"ack {name} {added.first_seq + i} {text}\n"
                                for i, text in enumerate(texts)).encode())
            number += size

    await asyncio.gather(*(converse(f"c{n}") for n in range(conversations)))


def serve() -> None:
    for line in sys.stdin:
        pipe, path, conversations, seed, durability, points = line.rstrip("\n").split("\t")
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(pipe, os.O_WRONLY), 1)
            failpoint._actions = failpoint.parse(points) or None
            try:
                asyncio.run(main(path, int(conversations), int(seed), durability))
            finally:
                traceback.print_exc()
                os._exit(1)
        os.write(1, b"%d\n" % pid)
        os.write(1, b"%d\n" % os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    serve()
