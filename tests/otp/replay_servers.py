"""The actors of the process and genserver families: bare ones, and servers that take notes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replay_compare import BadTrace
from replay_stage import Stage

from keepwell.actors import Actor, AsyncActor, ExitActor, Future, Ignore, ThreadActor

IDLE_SECONDS = 0.02


def to_seconds(timeout: float | str | None) -> float | None:
    """A timeout in ms; None and "infinity" mean none."""
    if timeout is None or timeout == "infinity":
        return None
    if isinstance(timeout, str):
        raise BadTrace(f"unknown timeout {timeout!r}")
    return timeout / 1000


class Crash(Exception):
    """An exception that nobody catches: `{r, Stacktrace}` in the trace."""

    def __init__(self, reason: Any) -> None:
        super().__init__(reason)
        self.reason = reason


class Do:
    """Run a function as the actor. Answers `(True, result)`, awaited if it is a future, or
    `(False, error)`."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def here(self, actor: Any) -> tuple[bool, Any]:
        try:
            value = self.function(actor)
            return True, value.get() if isinstance(value, Future) else value
        except Exception as error:  # judged by the step, in the driver
            return False, error

    async def on_loop(self, actor: Any) -> tuple[bool, Any]:
        try:
            value = self.function(actor)
            return True, await value if isinstance(value, Future) else value
        except Exception as error:  # judged by the step, in the driver
            return False, error


class Leave:
    """The order to end from inside by raising an error."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Bare(Actor):
    """An actor that keeps what it receives."""

    otp_shutdown = True

    def __init__(self, trap: bool = False) -> None:
        super().__init__()
        self.trap_exit = trap
        self.inbox: list[Any] = []

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, Do):
            return message.here(self)
        return self.keep(message)

    def keep(self, message: Any) -> None:
        if isinstance(message, Leave):
            raise message.error
        self.inbox.append(message)


class ThreadBare(Bare, ThreadActor):
    """The same in a thread of its own."""


class AsyncBare(Bare, AsyncActor):
    """The same on an event loop."""

    async def on_receive(self, message: Any) -> Any:
        if isinstance(message, Do):
            return await message.on_loop(self)
        return self.keep(message)


BARES = {"light": Bare, "thread": ThreadBare, "async": AsyncBare}


class Note:
    """A tell to a server: a cast or an info."""

    def __init__(self, req: Any) -> None:
        self.req = req


class Continue:
    """A continuation, noted as `(continue, what)`."""

    def __init__(self, what: str) -> None:
        self.what = what


class Server(Actor):
    """A server that notes, in order, what it handles."""

    otp_shutdown = True

    def __init__(self, stage: Stage, init: str | None = None) -> None:
        super().__init__()
        self.stage, self.init = stage, init
        self.notes: list[Any] = []

    def on_start(self) -> Any:
        if self.init == "hang":
            self.stage.hang()
        return self.begin()

    def begin(self) -> Any:
        if self.init == "stop":
            raise ExitActor("bad")
        if self.init == "raise":
            raise Crash("bad")
        if self.init == "ignore":
            return Ignore
        if self.init == "self_cast_then_continue":
            self.actor_ref.tell(Note("early_cast"))
            self.continue_with(Continue("first"))
        elif self.init is not None:
            raise BadTrace(f"unknown init {self.init!r}")
        return None

    def get_state(self) -> Any:
        return list(self.notes)

    def on_receive(self, message: Any) -> Any:
        if (seconds := seconds_of(message)) > 0:
            self.stage.sleep(seconds)
        return self.handle(message)

    def handle(self, message: Any) -> Any:
        if isinstance(message, Leave):
            raise message.error
        if isinstance(message, Continue):
            self.notes.append(("continue", message.what))
        elif isinstance(message, Note):
            if message.req == "crash":
                raise ExitActor("boom")
            self.notes.append(message.req)
        else:
            return self.answer(message)
        return None

    def answer(self, req: Any) -> Any:
        if req == "seen":
            return list(self.notes)
        if isinstance(req, dict):
            return self.answer_mapping(req)
        if req == "crash":
            raise ExitActor("boom")
        if req == "error":
            raise Crash("boom")
        if req == "stop":
            raise ExitActor("normal")
        if req == "stop_reply":
            self.stop()
            return "bye"
        if req == "noreply":
            self.defer()
            return None
        if req == "reply_then_crash":
            self.defer().reply("early")
            raise ExitActor("boom")
        if req == "self_call":
            return self.actor_ref.call("seen", timeout=0.1).get()
        if req == "continue":
            self.continue_with(Continue("after_call"))
            return "ok"
        if req == "timeout":
            self.idle_timeout(IDLE_SECONDS, Note("timeout"))
            return "ok"
        if req == "hibernate":
            return "ok"
        raise BadTrace(f"unknown request {req!r}")

    def answer_mapping(self, req: dict[str, Any]) -> Any:
        if set(req) == {"reply"}:
            value = req["reply"]
        elif set(req) == {"sleep_reply", "v"}:
            value = req["v"]
        else:
            raise BadTrace(f"unknown request {req!r}")
        self.notes.append(value)
        return value


def seconds_of(message: Any) -> float:
    """How long a server sleeps before it handles a message."""
    return message.get("sleep_reply", 0) / 1000 if isinstance(message, dict) else 0.0


class ThreadServer(Server, ThreadActor):
    """The same in a thread of its own."""


class AsyncServer(Server, AsyncActor):
    """The same on an event loop."""

    async def on_start(self) -> Any:
        if self.init == "hang":
            await self.stage.hang_async()
        return self.begin()

    async def on_receive(self, message: Any) -> Any:
        if (seconds := seconds_of(message)) > 0:
            await self.stage.pause(seconds)
        return self.handle(message)


SERVERS = {"light": Server, "thread": ThreadServer, "async": AsyncServer}
