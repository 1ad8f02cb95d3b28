"""An agent with a tool and a durable conversation. Run it twice: it remembers the first run.

Replace the scripted model by `keepwell.OpenAIModel("gpt-5-mini")` to talk to a real one.
"""

import asyncio

import keepwell


@keepwell.tool(idempotent=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    call = keepwell.ToolCall("call_1", "add", {"a": 2, "b": 2})
    model = keepwell.ScriptedModel(call, "2 + 2 is 4.")
    spec = keepwell.AgentSpec(model, instructions="You add.", tools=[add])
    async with keepwell.Runtime(data_dir="./data") as runtime:
        agent = await runtime.spawn(spec, conversation_id="session-1")
        result = await agent.run("What is 2 + 2?")
        print(f"{result.text} ({result.status}, {len(result.steps)} steps)")
        for message in await agent.messages():
            print(f"{message.role:>9}: {message.content or message.tool_calls[0].name + '(…)'}")


asyncio.run(main())
