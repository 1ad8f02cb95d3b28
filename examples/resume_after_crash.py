"""An agent is killed in the middle of a turn; its supervisor starts the next, which goes on.

The steps that are in the log are not run again: `charge` runs once, although the agent dies after
it. A tool that may be run twice without harm says so with `idempotent=True`.
"""

import asyncio

from keepwell import AgentSpec, FunctionModel, Message, ModelRequest, Runtime, ToolCall, tool

charged: list[int] = []
hangs = asyncio.Event()


@tool
async def charge(amount: int) -> str:
    """Charge the customer."""
    charged.append(amount)
    return f"charged {amount}"


async def model(request: ModelRequest) -> Message | str:
    """Stands in for a model: calls the tool, then hangs once, then answers."""
    if request.messages[-1].role == "user":
        return Message("assistant", None, [ToolCall("c1", "charge", {"amount": 5})])
    if not hangs.is_set():
        hangs.set()
        await asyncio.Event().wait()  # here the agent is killed
    return "Thank you, that is paid."


async def main() -> None:
    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(FunctionModel(model), tools=[charge]), "customer-7")
        answer = agent.run("I would like to pay.")
        await hangs.wait()
        agent.ref.kill()
        print((await answer).text)  # the same call: nobody outside noticed
        print("charged", charged)
        for record in await runtime.store.read("customer-7", marks=True):
            what = record.message or dict(record.mark or {})
            print(record.seq, what)
        assert charged == [5]


asyncio.run(main())
