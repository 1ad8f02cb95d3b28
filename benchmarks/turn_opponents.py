"""The same turn with what one would use instead, durable in a SQLite file, as documented there.

OpenAI Agents SDK: `Runner.run(agent, question, session=SQLiteSession(id, file))`, one session an
id on one file, tracing off. LangGraph: `create_react_agent(model, tools, checkpointer=…)` with an
`AsyncSqliteSaver` on one file, a thread id per conversation. Their defaults; models without delay.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .adder import ANSWER, QUESTION, add
from .benchmark import Stopwatch, missing_module
from .disk import directory


def openai_agents_missing() -> str:
    """Why the OpenAI Agents SDK cannot be measured here, "" if it can."""
    return missing_module("agents")


def langgraph_missing() -> str:
    """Why LangGraph cannot be measured here, "" if it can."""
    return missing_module("langgraph") or missing_module("langgraph.checkpoint.sqlite")


def openai_agents(conversations: int) -> Any:
    """A contender: turns with the OpenAI Agents SDK."""

    def run(watch: Stopwatch, operations: int) -> Mapping[str, float] | None:
        with directory() as path:
            asyncio.run(_openai_agents(watch, operations, conversations, path))
        return None

    return run


async def _openai_agents(watch: Stopwatch, operations: int, conversations: int, path: Path) -> None:
    import agents  # noqa: PLC0415 - an opponent: imported when it is measured
    from agents.items import ModelResponse  # noqa: PLC0415 - as above
    from openai.types.responses import (  # noqa: PLC0415 - as above
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    agents.set_tracing_disabled(True)
    numbers = iter(range(1 << 40))

    class Scripted(agents.Model):
        async def get_response(self, *args: Any, **kwargs: Any) -> Any:
            items = kwargs["input"] if "input" in kwargs else args[1]
            last = items[-1] if isinstance(items, list) else {"role": "user"}
            if last.get("type") == "function_call_output":
                text = ResponseOutputText(annotations=[], text=ANSWER, type="output_text")
                out: Any = ResponseOutputMessage(
                    id=f"m{next(numbers)}", content=[text], role="assistant", status="completed",
                    type="message",
                )  # fmt: skip
            else:
                out = ResponseFunctionToolCall(
                    arguments='{"a":1,"b":2}', call_id=f"c{next(numbers)}", name="add",
                    type="function_call",
                )  # fmt: skip
            return ModelResponse(output=[out], usage=agents.Usage(), response_id=None)

        def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    agent = agents.Agent(name="adder", model=Scripted(), tools=[agents.function_tool(add)])
    sessions = [
        agents.SQLiteSession(f"c{number}", path / "sessions.db") for number in range(conversations)
    ]

    async def converse(session: Any, turns: int) -> None:
        for _ in range(turns):
            result = await agents.Runner.run(agent, QUESTION, session=session)
            assert result.final_output == ANSWER

    try:
        await asyncio.gather(*(converse(session, 1) for session in sessions))
        with watch:
            await asyncio.gather(
                *(converse(session, operations // conversations) for session in sessions)
            )
    finally:
        for session in sessions:
            session.close()


def langgraph(conversations: int) -> Any:
    """A contender: turns with LangGraph."""

    def run(watch: Stopwatch, operations: int) -> Mapping[str, float] | None:
        with directory() as path, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own deprecations
            asyncio.run(_langgraph(watch, operations, conversations, path))
        return None

    return run


async def _langgraph(watch: Stopwatch, operations: int, conversations: int, path: Path) -> None:
    from langchain_core.language_models import BaseChatModel  # noqa: PLC0415 - as above
    from langchain_core.messages import AIMessage, ToolMessage  # noqa: PLC0415 - as above
    from langchain_core.outputs import ChatGeneration, ChatResult  # noqa: PLC0415 - as above
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver  # noqa: PLC0415 - as above
    from langgraph.prebuilt import create_react_agent  # noqa: PLC0415 - as above

    numbers = iter(range(1 << 40))

    class Scripted(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, tools: Any, **_kwargs: Any) -> Any:
            return self

        def _generate(self, messages: Any, *_args: Any, **_kwargs: Any) -> Any:
            if isinstance(messages[-1], ToolMessage):
                message = AIMessage(ANSWER)
            else:
                call = {"name": "add", "args": {"a": 1, "b": 2}, "id": f"c{next(numbers)}"}
                message = AIMessage("", tool_calls=[call])
            return ChatResult(generations=[ChatGeneration(message=message)])

        async def _agenerate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            return self._generate(messages)

    async with AsyncSqliteSaver.from_conn_string(str(path / "checkpoints.db")) as saver:
        graph = create_react_agent(Scripted(), [add], checkpointer=saver)

        async def converse(number: int, turns: int) -> None:
            config: Any = {"configurable": {"thread_id": f"c{number}"}}
            for _ in range(turns):
                question: Any = {"messages": [("user", QUESTION)]}
                state = await graph.ainvoke(question, config)
                assert state["messages"][-1].content == ANSWER

        await asyncio.gather(*(converse(number, 1) for number in range(conversations)))
        with watch:
            await asyncio.gather(
                *(converse(number, operations // conversations) for number in range(conversations))
            )
