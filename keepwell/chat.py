"""`keepwell chat`: a conversation on the terminal whose history survives exit and kill.

Lines from a pipe are taken one after another, each when the turn before has ended. `/crash store`
crashes the store's actor as a bug would; what comes next is answered all the same.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import sys
from typing import Any

from . import demo_story as story
from .actors import telemetry
from .actors.errors import KeepwellError
from .agent.agent import Agent
from .agent.errors import ModelError
from .agent.events import ModelEnded, StepRestarted, TextDelta, ToolEnded, ToolStarted
from .agent.spec import AgentSpec
from .cli import default_data_dir
from .config import load_config
from .input_lines import input_lines
from .memory.window import Window
from .runtime import Runtime
from .terminal import Style, style_for

HELP = "/history  /tree  /crash store  /quit"

_INSTRUCTIONS = "You are a friendly assistant. Answer briefly."


def run(args: argparse.Namespace) -> int:
    """Hold the conversation until /quit, the end of the input or Ctrl+C.

    0, or 1 if what came through a pipe met an error: whoever wrote it does not read the screen.
    """
    logging.getLogger("keepwell").addHandler(logging.NullHandler())
    try:
        failures = asyncio.run(_chat(args))
    except KeyboardInterrupt:
        print()
        return 0
    return 1 if failures and not sys.stdin.isatty() else 0


async def _chat(args: argparse.Namespace) -> int:
    style = style_for()
    config = load_config()
    model, what = await asyncio.to_thread(
        story.choose_model, args.model or config.model, args.base_url or config.base_url
    )
    spec = AgentSpec(model, name="chat", instructions=_INSTRUCTIONS, memory=Window(40))
    data_dir = args.data_dir or config.data_dir or default_data_dir()
    async with Runtime(data_dir=data_dir) as runtime:
        agent = await runtime.spawn(spec, args.conversation)
        known = len(await agent.messages())
        failures = 0
        interactive = sys.stdin.isatty()
        if interactive:
            print(style.dim(f"{what}\n{args.conversation!r}, {known} messages so far. {HELP}"))
        notices = _Notices()
        with telemetry.attach("keepwell.store.opened", _note(style, notices)):
            async for line in input_lines("> " if interactive else ""):
                if line == "/quit":
                    break
                failures += not await _answer(line, runtime, agent, style, notices)
    close = getattr(model, "aclose", None)
    if close is not None:
        await close()
    return failures


class _Notices:
    """What happens beside the conversation, told between its lines and never within one."""

    def __init__(self) -> None:
        self._within_line = False
        self._held: list[str] = []

    def tell(self, text: str) -> None:
        self._held.append(text)
        if not self._within_line:
            self.line_ended()

    def line_begun(self) -> None:
        self._within_line = True

    def line_ended(self) -> None:
        self._within_line = False
        while self._held:
            print(self._held.pop(0))


def _note(style: Style, notices: _Notices) -> Any:
    loop = asyncio.get_running_loop()

    def opened(_event: str, _fields: Any) -> None:
        text = style.dim("(the store is back)")
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody reads it any more
            loop.call_soon_threadsafe(notices.tell, text)

    return opened


async def _answer(
    line: str, runtime: Runtime, agent: Agent, style: Style, notices: _Notices
) -> bool:
    """Do what a line asks for; False if it failed, which has been told."""
    try:
        if line == "/history":
            for message in await agent.messages():
                print(f"{style.cyan(message.role.ljust(9))}  {_shown(message)}")
        elif line == "/tree":
            print(await story.settled_tree(runtime))
        elif line == "/crash store":
            runtime.store.port.ref.exit("crashed by hand")
        elif line.startswith("/"):
            print(f"{line.split()[0]} is no command here. {HELP}")
        else:
            await _turn(line, agent, style, notices)
    except ModelError as error:
        print(style.red(f"the model failed: {error}"), file=sys.stderr)
        return False
    except KeepwellError as error:
        print(style.red(str(error)), file=sys.stderr)
        return False
    return True


async def _turn(question: str, agent: Agent, style: Style, notices: _Notices) -> None:
    try:
        async for event in agent.stream(question):
            if isinstance(event, TextDelta):
                notices.line_begun()
                print(event.text, end="", flush=True)
            elif isinstance(event, ModelEnded):
                print()
                notices.line_ended()
            elif isinstance(event, StepRestarted):
                print(style.dim(" (asking again)"))
                notices.line_ended()
            elif isinstance(event, ToolStarted):
                print(style.dim(f"{event.name}({event.arguments})"))
            elif isinstance(event, ToolEnded):
                print(style.dim(f"= {event.content}"))
    finally:
        notices.line_ended()


def _shown(message: Any) -> str:
    calls = ", ".join(f"{call.name}({call.arguments})" for call in message.tool_calls)
    return " ".join(filter(None, (message.text, calls)))
