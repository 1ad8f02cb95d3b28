"""The kernel without an agent: a model with tools and filters, stateless or over a store."""

import asyncio
import time

from keepwell import (
    ChatRequest,
    Filter,
    FunctionModel,
    Kernel,
    ModelReply,
    ModelRequest,
    Runtime,
    memory_filter,
)


def model(request: ModelRequest) -> str:
    """Stands in for a model: says how much it is shown."""
    return f"I see {len(request.messages)} messages."


class Timing(Filter):
    """Measures each model call."""

    async def around_chat(self, request, next):  # type: ignore[no-untyped-def]  # short, as in a notebook
        began = time.perf_counter()
        reply: ModelReply = await next(request)
        assert isinstance(request, ChatRequest)
        print(f"round {request.round}: {(time.perf_counter() - began) * 1e3:.1f} ms")
        return reply


async def main() -> None:
    plain = Kernel(FunctionModel(model), filters=[Timing()], instructions="Be brief.")
    print((await plain.invoke("Hello?")).text)  # the prompt and the question
    print((await plain.invoke("Again?")).text)  # the same: it remembers nothing
    async with Runtime() as runtime:
        filters = [Timing(), memory_filter(runtime.store)]
        kernel = Kernel(FunctionModel(model), filters=filters)
        for question in ("Hello?", "Again?"):
            print((await kernel.invoke(question, conversation_id="c1")).text)
        print(len(await runtime.store.get("c1")), "messages are stored")


asyncio.run(main())
