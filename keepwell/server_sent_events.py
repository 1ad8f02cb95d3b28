"""A turn's events as server-sent events that a reader may take up again where it lost them.

Each event carries an id: the turn and how far the reader has got in it, in the words of the log
(step, characters of text, calls begun and ended). It holds in every process and for ever, because
it counts what is stored and not what was sent. Whoever comes back with it as `Last-Event-ID` gets
what follows, each piece once. Text that was on its way when the process died was never stored; if
the repeated model call says something else, the reader is told so (`step_restarted`), and the check
sum in the id is how that is known.
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from .actors.errors import ActorDied, InvalidValue, KeepwellError, Unavailable
from .agent.events import (
    Event,
    ModelEnded,
    ModelStarted,
    Paused,
    StepRestarted,
    TextDelta,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from .agent.wire import clean_json
from .stores.errors import StoreError

if TYPE_CHECKING:
    from .agent.stream import EventStream

PING_SECONDS: Final = 15.0
"""How long a connection is silent at most; proxies close those that are silent for longer."""
_PLACE: Final = re.compile(
    r"(?P<step>\d{1,9})(?:\.(?P<chars>\d{1,9})\.(?P<check>[0-9a-f]{8}))?(?P<ended>e)?"
    r"(?P<begun>(?:\+\d{1,9})*)(?P<done>(?:=\d{1,9})*)(?P<over>\$)?"
)


@dataclass(frozen=True, slots=True)
class Position:
    """How far a reader has got in a turn.

    step: the last model call it saw begin, 0 before the first. chars, check: how many characters
    of its text, and their CRC-32. ended: whether it saw that call end. begun, done: the steps of
    the tool calls after it. over: whether it saw the turn end.
    """

    step: int = 0
    chars: int = 0
    check: int = 0
    ended: bool = False
    begun: frozenset[int] = frozenset()
    done: frozenset[int] = frozenset()
    over: bool = False

    def __str__(self) -> str:
        text = f".{self.chars}.{self.check:08x}" if self.chars else ""
        calls = [f"+{step}" for step in sorted(self.begun - self.done)]
        calls += [f"={step}" for step in sorted(self.done)]
        return f"{self.step}{text}{'e' * self.ended}{''.join(calls)}{'$' * self.over}"

    @classmethod
    def of(cls, text: str) -> Position:
        """The position that was written as `text`. Raises InvalidValue."""
        match = _PLACE.fullmatch(text)
        if match is None:
            raise InvalidValue(f"{text!r} is no position in a turn: send the id of the last event")
        begun, done = (
            frozenset(map(int, re.findall(r"\d+", match[name]))) for name in ("begun", "done")
        )
        return cls(
            int(match["step"]),
            int(match["chars"] or 0),
            int(match["check"] or "0", 16),
            bool(match["ended"]),
            begun | done,
            done,
            bool(match["over"]),
        )


class Reader:
    """Passes on the events of a turn that a reader has not seen. Pure."""

    def __init__(self, seen: Position | None = None) -> None:
        self._new = seen is None
        self.position = seen or Position()
        self._missing = self.position.chars if not self.position.ended else 0
        """So many characters the reader has, and the stream has yet to show again."""
        self._again = ""

    def unseen(self, event: Event) -> Iterator[Event]:
        """What of `event` is new to the reader; `position` is right after each of them."""
        match event:
            case TurnStarted():
                if self._new:
                    yield event
            case ModelStarted(step):
                if step > self.position.step:
                    self._begin(step)
                    yield event
            case TextDelta(step, text):
                yield from self._text(step, text)
            case StepRestarted(step):
                if self._open(step):
                    yield from self._restarted(step)
            case ModelEnded(step):
                if self._open(step):
                    if self._missing:
                        yield from self._other_text(step)
                    self.position = replace(self.position, ended=True)
                    yield event
            case ToolStarted(step):
                if self._call_is_new(step, self.position.begun):
                    self.position = replace(self.position, begun=self.position.begun | {step})
                    yield event
            case ToolEnded(step):
                if self._call_is_new(step, self.position.done):
                    done = self.position.done | {step}
                    self.position = replace(
                        self.position, begun=self.position.begun | {step}, done=done
                    )
                    yield event
            case TurnEnded():
                if not self.position.over:
                    self.position = replace(self.position, over=True)
                    yield event
            case Paused():
                yield event

    def _begin(self, step: int) -> None:
        self.position = Position(step)
        self._missing, self._again = 0, ""

    def _open(self, step: int) -> bool:
        return step == self.position.step and not self.position.ended

    def _call_is_new(self, step: int, seen: frozenset[int]) -> bool:
        return step > self.position.step and step not in seen

    def _text(self, step: int, text: str) -> Iterator[Event]:
        if not self._open(step):
            return
        if self._missing:
            self._again += text
            if len(self._again) < self._missing:
                return
            if _check(self._again[: self._missing]) != self.position.check:
                yield from self._other_text(step)
                return
            text, self._missing = self._again[self._missing :], 0
        if text:
            yield self._said(step, text)

    def _said(self, step: int, text: str) -> TextDelta:
        seen = self.position
        self.position = replace(
            seen, chars=seen.chars + len(text), check=_check(text, seen.check)
        )
        return TextDelta(step, text)

    def _restarted(self, step: int) -> Iterator[Event]:
        self._again, self._missing = "", 0
        if self.position.chars:
            self.position = Position(step)
            yield StepRestarted(step)

    def _other_text(self, step: int) -> Iterator[Event]:
        """The model call was repeated and does not say what the reader has read."""
        text = self._again
        yield from self._restarted(step)
        if text:
            yield self._said(step, text)


def event_frames(
    stream: EventStream,
    last_event_id: str | None = None,
    *,
    without: Collection[type[Event]] = (),
    ping: float = PING_SECONDS,
) -> AsyncIterator[str]:
    """Return the frames of `agent.stream(question, turn_id=…)`, for a `text/event-stream` response.

    last_event_id: the request's `Last-Event-ID`; what the reader had before is left out (an id of
    another turn says nothing about this one). without: event classes that are not for the reader,
    for example `(ToolStarted, ToolEnded)`. ping: seconds between comments in silence.

    Frames have the names `turn_started`, `model_started`, `text_delta`, `step_restarted` (forget
    the text of this step), `model_ended`, `tool_started`, `tool_ended`, and at the end
    `turn_ended`, `paused` or `turn_failed`; the data is JSON. A stream that ends without one of
    these was interrupted (the service stops, the store is away): ask again with the same turn id
    and the last event id, here or at the successor. Dropping the frames leaves the turn alone.

    Raises InvalidValue at once, if `last_event_id` is none of ours. Rules: EV-1, EV-2, AG-6.
    """
    reader = Reader(_seen(stream.turn_id, last_event_id))
    return _frames(stream, reader, tuple(without), ping)


def _seen(turn_id: str, last_event_id: str | None) -> Position | None:
    if not last_event_id:
        return None
    turn, slash, place = last_event_id.rpartition("/")
    if not slash:
        raise InvalidValue(
            f"Last-Event-ID {last_event_id!r} is none of ours: send the id of the last event"
        )
    position = Position.of(place)
    return position if unquote(turn) == turn_id else None


async def _frames(
    stream: EventStream, reader: Reader, without: tuple[type[Event], ...], ping: float
) -> AsyncIterator[str]:
    turn = quote(stream.turn_id, safe="")
    waiting: asyncio.Task[Event] | None = None
    try:
        while True:
            if waiting is None:
                waiting = asyncio.ensure_future(_next(stream))
            if not waiting.done():
                await asyncio.wait((waiting,), timeout=ping)
            if not waiting.done():
                yield ":\n\n"
                continue
            event = waiting.result()
            waiting = None
            for unseen in reader.unseen(event):
                if not isinstance(unseen, without):
                    yield _frame(_NAMES[type(unseen)], _data(unseen), f"{turn}/{reader.position}")
    except StopAsyncIteration:
        pass
    except (Unavailable, ActorDied, StoreError) as error:
        # The turn is open: whoever asks again goes on with it.
        yield f": {type(error).__name__}\nretry: 1000\n\n"
    except KeepwellError as error:
        yield _frame("turn_failed", {"error": type(error).__name__, "message": str(error)}, None)
    finally:
        if waiting is not None:
            waiting.cancel()
        stream.close()


async def _next(stream: EventStream) -> Event:
    return await anext(stream)


def _check(text: str, before: int = 0) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"), before)


def _frame(name: str, data: object, event_id: str | None) -> str:
    # ASCII only, hence without a line break that could end the field.
    body = json.dumps(clean_json(data), separators=(",", ":"))
    head = "" if event_id is None else f"id: {event_id}\n"
    return f"{head}event: {name}\ndata: {body}\n\n"


def _data(event: Event) -> dict[str, Any]:
    match event:
        case TurnStarted(conversation_id, turn_id):
            return {"conversation_id": conversation_id, "turn_id": turn_id}
        case ModelStarted(step) | StepRestarted(step) | ModelEnded(step):
            return {"step": step}
        case TextDelta(step, text):
            return {"step": step, "text": text}
        case ToolStarted(step, call_id, name, arguments):
            return {"step": step, "call_id": call_id, "name": name, "arguments": arguments}
        case ToolEnded(step, call_id, name, content, error):
            return {
                "step": step, "call_id": call_id, "name": name, "content": content, "error": error,
            }  # fmt: skip
        case Paused(pending, _):
            calls = [
                {"call_id": call.call_id, "name": call.name, "arguments": call.arguments,
                 "kind": call.kind, "reason": call.reason}
                for call in pending
            ]  # fmt: skip
            return {"pending": calls}
        case TurnEnded(result):
            return {
                "turn_id": result.turn_id, "text": result.text, "usage": result.usage.to_dict(),
            }  # fmt: skip


_NAMES: Final = {
    TurnStarted: "turn_started",
    ModelStarted: "model_started",
    TextDelta: "text_delta",
    StepRestarted: "step_restarted",
    ModelEnded: "model_ended",
    ToolStarted: "tool_started",
    ToolEnded: "tool_ended",
    Paused: "paused",
    TurnEnded: "turn_ended",
}

__all__ = ["PING_SECONDS", "Position", "Reader", "event_frames"]
