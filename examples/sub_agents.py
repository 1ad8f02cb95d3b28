"""Agents that hand tasks to other agents. Only an answer comes back; a child's log goes with it."""

import asyncio

from keepwell import (
    AgentSpec,
    FunctionModel,
    Message,
    ModelRequest,
    Runtime,
    ToolCall,
    delegate,
    fan_out,
)


def expert(request: ModelRequest) -> str:
    """Stands in for the sub-agent's model."""
    return f"The answer to {request.messages[-1].content!r} is 42."


def boss(request: ModelRequest) -> Message | str:
    """Stands in for the parent's model: asks one expert, then three at once."""
    match [m.role for m in request.messages].count("tool"):
        case 0:
            call = ToolCall("c1", "ask_expert", {"task": "Why?", "background": "Be thorough."})
        case 1:
            call = ToolCall("c2", "ask_expert_all", {"tasks": ["When?", "Where?", "Who?"]})
        case _:
            return "They all say 42."
    return Message("assistant", None, [call])


async def main() -> None:
    expert_spec = AgentSpec(FunctionModel(expert), name="expert", instructions="You know it all.")
    tools = [delegate(expert_spec), fan_out(expert_spec)]
    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(FunctionModel(boss), tools=tools), "c1")
        result = await agent.run("What is it?")
        for message in result.messages:
            print(f"{message.role:9}", message.text or [call.name for call in message.tool_calls])


asyncio.run(main())
