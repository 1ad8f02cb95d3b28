"""One agent per conversation, activated on demand: a thousand conversations, ten at a time."""

import asyncio

from keepwell import AgentSpec, FunctionModel, ModelRequest, Runtime, Window


async def model(request: ModelRequest) -> str:
    """Stands in for a model."""
    await asyncio.sleep(0)
    return f"message {len(request.messages)} of {request.conversation_id}"


async def main() -> None:
    async with Runtime() as runtime:
        spec = AgentSpec(FunctionModel(model), memory=Window(20))
        fleet = runtime.fleet(spec, idle_timeout=60, max_active=10)
        answers = await asyncio.gather(
            *(fleet.agent(f"user-{n}").run("hello") for n in range(1000))
        )
        print(len(answers), "answers,", fleet.active, "agents at most", fleet.statistics())
        print((await fleet.agent("user-7").run("again")).text)
        assert fleet.active <= 10


asyncio.run(main())
