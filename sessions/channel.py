"""Channels: typed, bounded queues of plain data, in and out of a session (A3…A6).

A channel by itself is a pair of queues, for programs that drive turns by hand and for tests. Given
to a session it is a declaration: name, payload type, bounds. Each run of the session then has
queues of its own, in the session's store.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from ..actors.future import Future
from ..stores.errors import shown
from ..stores.plain import Plain, canonical_json, copy_plain
from ..stores.session_errors import ChannelFull
from .errors import PayloadInvalid, PayloadTooLarge, RecvTimeout, SessionDefinitionError
from .payload_type import Check, payload_check

T = TypeVar("T")

CAPACITY: Final = 1_000
MAX_BYTES: Final = 1_048_576


class Payload(NamedTuple):
    """A checked payload: its own copy, and its canonical JSON."""

    value: Plain
    encoded: bytes


class Channel(Generic[T]):
    """A named channel: `append` -> `recv` inwards, `emit` -> `drain` outwards, each FIFO.

    payload: a type of plain data or a JSON Schema, None for anything; `Channel[dict]("in")` is
    `Channel("in", dict)`. capacity: messages that may wait, in each direction. max_bytes: largest
    payload, as canonical JSON. Raises SessionDefinitionError for values that cannot be used and
    for payload types that cannot be checked. Safe to use from any thread. Rules: A3…A6.

        >>> inbox = Channel("in", int)
        >>> inbox.emit(1), inbox.emit(2), inbox.drain(), inbox.drain()
        (None, None, [1, 2], [])
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, payload):
            return super().__class_getitem__(payload) if isinstance(payload, TypeVar) else _Of(
                cls, payload
            )

    def __init__(
        self,
        name: str,
        payload: object = None,
        *,
        capacity: int = CAPACITY,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if not isinstance(name, str) or not name:  # type: ignore[redundant-expr]  # callers without types
            raise SessionDefinitionError(f"a channel's name is a non-empty str, not {shown(name)}")
        for field, value in (("capacity", capacity), ("max_bytes", max_bytes)):
            if type(value) is not int or value < 1:
                raise SessionDefinitionError(
                    f"{field} of channel {name!r} must be an int of 1 or more, not {shown(value)}"
                )
        self.name = str(copy_plain(name))
        self.payload = payload
        self.capacity = capacity
        self.max_bytes = max_bytes
        self._check: Check = payload_check(payload)
        self._lock = threading.Lock()
        self._inwards: deque[Plain] = deque()
        self._waiting: deque[Future[None]] = deque()
        # Waiters that were woken and have not run yet: so many of the messages are spoken for.
        self._woken = 0
        self._outwards: list[Plain] = []

    def __repr__(self) -> str:
        return f"Channel({self.name!r}, {self.payload!r})"

    # -- checks --------------------------------------------------------------------------------

    def check(self, value: object) -> Payload:
        """Copy and check a payload. Raises NotPlain, PayloadInvalid, PayloadTooLarge, in order."""
        plain = copy_plain(value)
        encoded = canonical_json(plain)
        fault = self.fault(plain, len(encoded))
        if fault is not None:
            raise fault
        return Payload(plain, encoded)

    def fault(self, plain: Plain, size: int) -> PayloadInvalid | PayloadTooLarge | None:
        """What is wrong with plain data of an encoded size, type first (B9)."""
        what = f"payload for channel {self.name!r}"
        problem = self._check(plain)
        if problem is not None:
            return PayloadInvalid(what, problem)
        if size > self.max_bytes:
            return PayloadTooLarge(what, size, self.max_bytes)
        return None

    # -- inwards -------------------------------------------------------------------------------

    def append(self, value: T) -> None:
        """Put a copy of a message behind those that wait. Raises what `check` does, ChannelFull."""
        plain = self.check(value).value
        with self._lock:
            if len(self._inwards) >= self.capacity:
                raise ChannelFull(self.name, self.capacity, len(self._inwards))
            self._inwards.append(plain)
            self._wake()

    async def recv(self, timeout: float | None = None) -> T:
        """Take the oldest message; waits at most `timeout` seconds, first come first served.

        Raises RecvTimeout. If the wait times out or is cancelled, no message is lost.
        """
        token: Future[None] = Future()
        with self._lock:
            self._waiting.append(token)
            self._wake()
            others = self._woken - 1
        try:
            async with asyncio.timeout(timeout):
                if token.done() and others:
                    await asyncio.sleep(0)  # behind those who were woken and have not run yet
                await token
        except BaseException as error:
            with self._lock:
                if token.done():
                    self._woken -= 1
                    self._wake()
                else:
                    self._waiting.remove(token)
            if isinstance(error, TimeoutError):
                raise RecvTimeout(self.name, timeout or 0.0) from None
            raise
        with self._lock:
            self._woken -= 1
            received: T = self._inwards.popleft()
        return received

    def _wake(self) -> None:
        """Wake as many waiters as there are messages; each takes the oldest one when it runs."""
        while self._waiting and len(self._inwards) > self._woken:
            self._woken += 1
            self._waiting.popleft().complete(None)

    # -- outwards ------------------------------------------------------------------------------

    def emit(self, value: T) -> None:
        """Put a copy of an output behind the others. Raises what `check` does, ChannelFull."""
        plain = self.check(value).value
        with self._lock:
            if len(self._outwards) >= self.capacity:
                raise ChannelFull(self.name, self.capacity, len(self._outwards))
            self._outwards.append(plain)

    def drain(self) -> list[T]:
        """Return all outputs in order, and forget them."""
        with self._lock:
            outwards, self._outwards = self._outwards, []
        return outwards


class _Of:
    """`Channel[dict]`: makes channels of that payload type."""

    def __init__(self, cls: type[Channel[Any]], payload: object) -> None:
        self._cls = cls
        self._payload = payload

    def __call__(self, name: str, **bounds: int) -> Channel[Any]:
        return self._cls(name, self._payload, **bounds)

    def __repr__(self) -> str:
        return f"Channel[{getattr(self._payload, '__name__', self._payload)}]"
