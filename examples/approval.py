"""A gate asks a human before money is spent. The pause survives restarts of the process."""

import asyncio
import tempfile

from keepwell import (
    AgentSpec,
    Allow,
    Approve,
    Ask,
    FunctionModel,
    GateCall,
    Message,
    ModelRequest,
    Runtime,
    ToolCall,
    tool,
)


@tool
async def transfer(amount: int, to: str) -> str:
    """Transfer money."""
    return f"transferred {amount} to {to}"


def gate(call: GateCall) -> Allow | Ask:
    """Small amounts may go."""
    arguments = call.arguments
    small = not isinstance(arguments, str) and int(str(arguments["amount"])) < 100
    return Allow() if small else Ask("more than 100")


def model(request: ModelRequest) -> Message | str:
    """Stands in for a model."""
    last = request.messages[-1]
    if last.role == "tool":
        return f"Done: {last.content}."
    call = ToolCall("c1", "transfer", {"amount": 500, "to": "Ada"})
    return Message("assistant", None, [call])


async def main() -> None:
    spec = AgentSpec(FunctionModel(model), tools=[transfer], gate=gate)
    with tempfile.TemporaryDirectory() as data_dir:
        async with Runtime(data_dir) as runtime:
            agent = await runtime.spawn(spec, "desk-1")
            result = await agent.run("Send Ada 500.")
            print(result.status, [(call.name, call.reason) for call in result.pending])
        # Days later, in another process:
        async with Runtime(data_dir) as runtime:
            agent = await runtime.spawn(spec, "desk-1")
            print("waiting:", [call.name for call in await agent.pending()])
            print((await agent.resume(Approve({"amount": 450, "to": "Ada"}))).text)


asyncio.run(main())
