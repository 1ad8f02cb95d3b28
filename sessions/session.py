"""Sessions: the definition of a finite turn inside an unbounded loop (A7…A14)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, overload

from ..stores.errors import shown
from ..stores.plain import Plain, canonical_json, copy_plain
from .channel import Channel
from .errors import PayloadInvalid, PayloadTooLarge, SessionDefinitionError, SessionValidationError
from .finding import Finding
from .node import Node
from .payload_type import Check, payload_check
from .plain_call import check_takes, is_async, target_of
from .validation import validate_body

Style = Literal["scan", "loop", "coroutine"]
Body = Callable[..., Any] | Node

MAX_CARRIER: Final = 8 << 20
"""Largest carrier, in bytes of canonical JSON (A6)."""


class _NoOutput:
    __slots__ = ()

    def __repr__(self) -> str:
        return "NO_OUTPUT"


NO_OUTPUT: Final = _NoOutput()
"""The output of a scan's turn that emits nothing as its last; None would be emitted (A9)."""


@dataclass(frozen=True, eq=False)
class Session:
    """A definition of a session: what a turn does, what it begins with, where messages come and go.

    body: a function `(message, carrier)`, sync or async, a flow node, or in coroutine style an
    async function of one argument. init: the first carrier; each run has its own copy. in_channel,
    out_channel, extra_channels (outbound): declarations. state_schema: a type or JSON Schema that
    init and every carrier must match. warnings: findings that do not forbid the session.

    Made by `scan`, `loop` and `session`; it can be run any number of times. Rules: A7, A14.
    """

    body: Body
    init: Plain
    in_channel: Channel[Any]
    out_channel: Channel[Any]
    extra_channels: tuple[Channel[Any], ...] = ()
    state_schema: object = None
    style: Style = "scan"
    warnings: tuple[Finding, ...] = ()
    name: str = "session"
    _check: Check = field(default=lambda _value: None, repr=False)

    @property
    def outputs(self) -> Mapping[str, Channel[Any]]:
        """The channels that a turn may emit to, by name."""
        return {channel.name: channel for channel in (self.out_channel, *self.extra_channels)}

    @property
    def is_flow(self) -> bool:
        """Whether the body is a flow."""
        return isinstance(self.body, Node)

    def check_carrier(self, value: object) -> Plain:
        """A copy of a carrier in stored form. Raises NotPlain, PayloadInvalid, PayloadTooLarge."""
        plain = copy_plain(value)
        problem = self._check(plain)
        if problem is not None:
            raise PayloadInvalid("carrier", problem)
        size = len(canonical_json(plain))
        if size > MAX_CARRIER:
            raise PayloadTooLarge("carrier", size, MAX_CARRIER)
        return plain


ChannelLike: TypeAlias = "str | Channel[Any]"


def scan(
    step: Body,
    init: object = None,
    *,
    in_channel: ChannelLike = "in",
    out_channel: ChannelLike = "out",
    extra_channels: Iterable[ChannelLike] = (),
    state_schema: object = None,
) -> Session:
    """A session whose turn returns `(carrier, output)`; the output is the turn's last emit.

    step: a function `(message, carrier)`, sync (runs in a pool thread) or async, or a flow node.
    None is emitted, NO_OUTPUT is not; anything but a tuple of two fails the turn. Raises
    SessionDefinitionError, SessionValidationError (all findings of a flow), NotPlain. Rules: A7…A9.

        >>> echo = scan(lambda message, carrier: (carrier, message))
    """
    return _define(step, init, in_channel, out_channel, extra_channels, state_schema, "scan")


def loop(
    body: Body,
    init: object = None,
    *,
    in_channel: ChannelLike = "in",
    out_channel: ChannelLike = "out",
    extra_channels: Iterable[ChannelLike] = (),
    state_schema: object = None,
) -> Session:
    """A session whose turn returns the carrier, whatever it is; outputs come by emit only (A10).

    Else as `scan`.
    """
    return _define(body, init, in_channel, out_channel, extra_channels, state_schema, "loop")


@overload
def session(fn: Callable[..., Any], /) -> Session: ...
@overload
def session(
    fn: None = None,
    /,
    *,
    init: object = None,
    in_channel: ChannelLike = "in",
    out_channel: ChannelLike = "out",
    extra_channels: Iterable[ChannelLike] = (),
    state_schema: object = None,
) -> Callable[[Callable[..., Any]], Session]: ...
def session(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    init: object = None,
    in_channel: ChannelLike = "in",
    out_channel: ChannelLike = "out",
    extra_channels: Iterable[ChannelLike] = (),
    state_schema: object = None,
) -> Session | Callable[[Callable[..., Any]], Session]:
    """Make a session of a function, as `@session` or `@session(init=0)`.

    A function of two parameters is the step of a `scan`. An async function of one parameter `s` is
    called once and runs live: `await s.recv()` ends its turn and waits for the next message,
    `s.carrier` is what is durable, `s.emit(value)` emits. Its source is not rewritten: closures,
    `try` and any await are fine. Raises SessionDefinitionError for other signatures and for
    generators. Rules: A11…A13.
    """

    def make(function: Callable[..., Any]) -> Session:
        parameters = _parameters(function)
        style: Style
        if parameters == 2:
            style = "scan"
        elif parameters == 1 and is_async(function):
            style = "coroutine"
        else:
            name = getattr(function, "__name__", function)
            raise SessionDefinitionError(
                f"@session on {name!r}: give a function of two parameters (message, carrier), or "
                "an async function of one (s)"
            )
        return _define(
            function, init, in_channel, out_channel, extra_channels, state_schema, style
        )

    return make if fn is None else make(fn)


def _define(
    body: Body,
    init: object,
    in_channel: ChannelLike,
    out_channel: ChannelLike,
    extra_channels: Iterable[ChannelLike],
    state_schema: object,
    style: Style,
) -> Session:
    inward, outward = _channel(in_channel, "in_channel"), _channel(out_channel, "out_channel")
    if isinstance(extra_channels, str | Channel):
        raise SessionDefinitionError("extra_channels is a list of channels: put it into a list")
    extra = tuple(_channel(each, "extra_channels") for each in extra_channels)
    names = [channel.name for channel in (inward, outward, *extra)]
    for name in names:
        if names.count(name) > 1:
            raise SessionDefinitionError(f"two channels are called {name!r}: rename one")
    warnings: tuple[Finding, ...] = ()
    if isinstance(body, Node):
        findings = validate_body(body, inward.name, [outward.name, *(c.name for c in extra)])
        blocking = [finding for finding in findings if finding.severity == "error"]
        if blocking:
            raise SessionValidationError(blocking)
        warnings = tuple(findings)
    elif isinstance(body, Session):
        raise SessionDefinitionError(
            "a session cannot be the body of another one: give its step, or a flow"
        )
    elif not callable(body):
        raise SessionDefinitionError(
            f"a session's body is a function or a flow node, not {shown(body)}"
        )
    elif style != "coroutine":
        _check_step(body)
    name = str(getattr(body, "__name__", None) or getattr(body, "kind", "session"))
    draft = Session(
        body, None, inward, outward, extra, state_schema, style, warnings, name,
        payload_check(state_schema),
    )  # fmt: skip
    # Through the same check as every later carrier.
    return Session(
        body, draft.check_carrier(init), inward, outward, extra, state_schema, style, warnings,
        name, draft._check,
    )  # fmt: skip


def _channel(value: object, where: str) -> Channel[Any]:
    if isinstance(value, Channel):
        return value
    if isinstance(value, str):
        return Channel(value)
    raise SessionDefinitionError(f"{where} is a name or a Channel, not {shown(value)}")


def _check_step(function: Callable[..., Any]) -> None:
    """Refuse what cannot be called with a message and a carrier."""
    _refuse_generators(function)
    check_takes(function, "message", "carrier")


def _refuse_generators(function: object) -> None:
    target = target_of(function)
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise SessionDefinitionError(
            f"{getattr(function, '__name__', function)!r} is a generator: emit instead of yielding"
        )


def _parameters(function: object) -> int:
    """How many positional arguments a function takes. Refuses generators, other signatures."""
    name = getattr(function, "__name__", shown(function))
    if not callable(function):
        raise SessionDefinitionError(f"{shown(function)} is no function")
    _refuse_generators(function)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2  # a builtin that does not tell: it will be called with two
    count = 0
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            count += 1
        elif parameter.kind is parameter.VAR_POSITIONAL or (
            parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
        ):
            raise SessionDefinitionError(
                f"{name!r} has the parameter {parameter}: it is called with positional arguments, "
                "one for each parameter"
            )
    return count
