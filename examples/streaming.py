"""A turn's events as they happen; blocking code does the same with `with` and plain `for`."""

import asyncio

from keepwell import (
    AgentSpec,
    FunctionModel,
    Message,
    ModelRequest,
    Runtime,
    TextDelta,
    ToolCall,
    ToolEnded,
    TurnEnded,
    tool,
)


@tool
async def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def model(request: ModelRequest) -> Message | str:
    """Stands in for a model."""
    last = request.messages[-1]
    if last.role == "tool":
        return f"It is {last.content}, take a hat with you."
    return Message("assistant", None, [ToolCall("c1", "weather", {"city": "Lisbon"})])


spec = AgentSpec(FunctionModel(model), tools=[weather])


async def main() -> None:
    async with Runtime() as runtime:
        agent = await runtime.spawn(spec)
        async for event in agent.stream("What shall I wear?"):
            match event:
                case ToolEnded():
                    print(f"[{event.name}: {event.content}]")
                case TextDelta():
                    print(event.text, end="", flush=True)
                case TurnEnded():
                    print(f"\n[{event.result.usage.total_tokens} tokens]")


def blocking() -> None:
    with Runtime() as runtime:
        agent = runtime.spawn(spec).get()
        text = "".join(e.text for e in agent.stream("And tomorrow?") if isinstance(e, TextDelta))
        print(text)


asyncio.run(main())
blocking()
