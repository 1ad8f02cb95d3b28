"""The shape of a message, and its checks at the door (CS-10…14).

A `Message` is immutable all the way down, so that the cache, the log and every reader may share
one object. Validation happens once, where a message comes in; what was decoded from a store was
valid when it went in and is built by `_trusted`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from .errors import InvalidMessage, shown
from .frozen import EMPTY, Frozen, FrozenDict, Unstorable, freeze, thaw

ROLES: Final = ("system", "user", "assistant", "tool")
"""The roles of a message, in the order of their codes on disk."""

Content = str | None | tuple[Mapping[str, Any], ...]
"""What a message says: text, nothing, or parts, each a mapping with a `type`."""

_PLAIN_ROLES = frozenset({"system", "user", "assistant"})
_OWN = frozenset({"role", "content", "tool_calls", "tool_call_id"})
_CALL_OWN = frozenset({"id", "name", "arguments"})


class ToolCall(Frozen):
    """One call of a tool, wished for by an assistant message.

    `arguments` is a mapping, or the raw text that the model wrote (it may be cut off or no JSON:
    it is kept as it is). Fields beyond the three are kept in `extra`.
    """

    __slots__ = ("arguments", "extra", "id", "name")
    __match_args__ = ("id", "name", "arguments")

    id: str
    name: str
    arguments: Mapping[str, Any] | str
    extra: Mapping[str, Any]

    def __init__(
        self,
        id: str,
        name: str,
        arguments: Mapping[str, Any] | str = EMPTY,
        **extra: Any,
    ) -> None:
        _set_call(self, *_checked_call(id, name, arguments, extra, None, ""))

    @classmethod
    def _trusted(
        cls, call_id: str, name: str, arguments: Mapping[str, Any] | str, extra: Mapping[str, Any]
    ) -> ToolCall:
        """Build a call from values known to be valid and frozen; the codec's way in."""
        call = _new(cls)
        _set_call(call, call_id, name, arguments, extra)
        return call

    def to_dict(self) -> dict[str, Any]:
        """The call as a fresh plain dict: `id`, `name`, `arguments`, and any extra fields."""
        return {
            "id": self.id,
            "name": self.name,
            "arguments": thaw(self.arguments),
            **thaw(self.extra),
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolCall):
            return NotImplemented
        return (
            self.id == other.id
            and self.name == other.name
            and self.arguments == other.arguments
            and self.extra == other.extra
        )

    def __hash__(self) -> int:
        return hash((ToolCall, self.id, self.name, self.arguments))

    def __reduce__(self) -> tuple[Any, ...]:
        return ToolCall._trusted, (self.id, self.name, self.arguments, self.extra)

    def __repr__(self) -> str:
        extra = "".join(f", {key}={value!r}" for key, value in self.extra.items())
        return f"ToolCall({self.id!r}, {self.name!r}, {self.arguments!r}{extra})"


class Message(Frozen):
    """One message of a conversation, immutable.

    `role` is system, user, assistant or tool. `content` is a str, None, or a tuple of parts (each
    a mapping with `type`); None, "" and () are three different contents. `tool_calls`: on
    assistant messages only. `tool_call_id`: on tool messages only, and always there. Any other
    field is kept in `extra`.

    Raises `InvalidMessage`, which names the path of what cannot be stored. Rules: CS-11…14.

        >>> Message("user", "hi").to_dict()
        {'role': 'user', 'content': 'hi'}
    """

    __slots__ = ("content", "extra", "role", "tool_call_id", "tool_calls")
    __match_args__ = ("role", "content")

    role: str
    content: Content
    tool_calls: tuple[ToolCall, ...]
    tool_call_id: str | None
    extra: Mapping[str, Any]

    def __init__(
        self,
        role: str,
        content: str | Sequence[Mapping[str, Any]] | None = None,
        tool_calls: Iterable[ToolCall | Mapping[str, Any]] = (),
        tool_call_id: str | None = None,
        **extra: Any,
    ) -> None:
        _set(self, *_checked(role, content, tool_calls, tool_call_id, extra, None))

    @classmethod
    def from_dict(cls, value: Mapping[str, Any], *, index: int | None = None) -> Message:
        """Check a mapping and return it as a message; `index` is its place in a batch.

        Raises `InvalidMessage` (CS-11…13). `Message.from_dict(m).to_dict()` equals `m`, but for
        tuples that came as lists and absent content that came as None.
        """
        if type(value) is dict and len(value) == 2:
            # What most messages are: a role and a text, nothing to be checked but these.
            role, content = value.get("role"), value.get("content")
            if type(content) is str and type(role) is str and role in _PLAIN_ROLES:
                message = _new(cls)
                _set(message, role, content, (), None, EMPTY)
                return message
        if not isinstance(value, Mapping):
            raise InvalidMessage(f"must be a Message or a mapping, not {shown(value)}", index=index)
        if "role" not in value:
            raise InvalidMessage(
                f"has no role; give one of {', '.join(ROLES)}", index=index, path="role"
            )
        extra = (
            EMPTY if value.keys() <= _OWN else {key: value[key] for key in value if key not in _OWN}
        )
        message = _new(cls)
        _set(
            message,
            *_checked(
                value["role"],
                value.get("content"),
                value.get("tool_calls"),
                value.get("tool_call_id"),
                extra,
                index,
            ),
        )
        return message

    @classmethod
    def _trusted(
        cls,
        role: str,
        content: Content,
        tool_calls: tuple[ToolCall, ...] = (),
        tool_call_id: str | None = None,
        extra: Mapping[str, Any] = EMPTY,
    ) -> Message:
        """Build a message from values known to be valid and frozen; the codec's way in."""
        message = _new(cls)
        _set(message, role, content, tool_calls, tool_call_id, extra)
        return message

    def to_dict(self) -> dict[str, Any]:
        """The message as a fresh plain dict; calls and call id only where there are any."""
        out: dict[str, Any] = {"role": self.role, "content": thaw(self.content)}
        if self.tool_calls:
            out["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        if self.tool_call_id is not None:
            out["tool_call_id"] = self.tool_call_id
        if self.extra:
            out.update(thaw(self.extra))
        return out

    def replace(self, **changes: Any) -> Message:
        """A copy with some fields changed, checked like a new message."""
        fields: dict[str, Any] = {
            "content": self.content,
            "tool_calls": self.tool_calls,
            "tool_call_id": self.tool_call_id,
            **self.extra,
            **changes,
        }
        return Message(fields.pop("role", self.role), **fields)

    @property
    def text(self) -> str:
        """The text of the message: its content, or its text parts joined, or ""."""
        if isinstance(self.content, str):
            return self.content
        return "".join(
            part["text"]
            for part in self.content or ()
            if part["type"] == "text" and isinstance(part.get("text"), str)
        )

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Message):
            return NotImplemented
        return (
            self.role == other.role
            and self.content == other.content
            and self.tool_calls == other.tool_calls
            and self.tool_call_id == other.tool_call_id
            and self.extra == other.extra
        )

    def __hash__(self) -> int:
        return hash((self.role, self.content, self.tool_calls, self.tool_call_id))

    def __reduce__(self) -> tuple[Any, ...]:
        return Message._trusted, (
            self.role,
            self.content,
            self.tool_calls,
            self.tool_call_id,
            self.extra,
        )

    def __repr__(self) -> str:
        parts = [repr(self.role), repr(self.content)]
        if self.tool_calls:
            parts.append(f"tool_calls={self.tool_calls!r}")
        if self.tool_call_id is not None:
            parts.append(f"tool_call_id={self.tool_call_id!r}")
        parts += [f"{key}={value!r}" for key, value in self.extra.items()]
        return f"Message({', '.join(parts)})"


def checked_messages(messages: object) -> list[Message]:
    """Check a batch: an iterable of `Message`s or mappings. Raises `InvalidMessage` (CS-10)."""
    return [
        message if type(message) is Message else Message.from_dict(message, index=index)
        for index, message in enumerate(batch(messages))
    ]


def batch(messages: object) -> Iterable[Any]:
    """`messages` to iterate over, or `InvalidMessage`: a str or one message is no batch (CS-10)."""
    if isinstance(messages, (list, tuple)):
        return messages
    if isinstance(messages, (str, bytes, bytearray, Mapping, Message)) or not isinstance(
        messages, Iterable
    ):
        raise InvalidMessage(
            f"messages must be an iterable of messages, not {shown(messages)}; "
            "put a single message into a list"
        )
    return messages


def settled(messages: Any) -> Any:
    """`messages` as something that can be looked at twice; what is no batch stays as it is."""
    if isinstance(messages, (list, tuple, str, bytes, bytearray, Mapping, Message)):
        return messages
    return list(messages) if isinstance(messages, Iterable) else messages


# -- checks -----------------------------------------------------------------------------------

_new = object.__new__
# The slots' own setters: the way around `__setattr__`, and the fastest one.
_set_role, _set_content, _set_calls, _set_call_id, _set_extra = (
    Message.__dict__[name].__set__
    for name in ("role", "content", "tool_calls", "tool_call_id", "extra")
)


def _set(
    message: Message,
    role: str,
    content: Content,
    tool_calls: tuple[ToolCall, ...],
    tool_call_id: str | None,
    extra: Mapping[str, Any],
) -> None:
    _set_role(message, role)
    _set_content(message, content)
    _set_calls(message, tool_calls)
    _set_call_id(message, tool_call_id)
    _set_extra(message, extra)


_set_id, _set_name, _set_arguments, _set_call_extra = (
    ToolCall.__dict__[name].__set__ for name in ("id", "name", "arguments", "extra")
)


def _set_call(
    call: ToolCall,
    call_id: str,
    name: str,
    arguments: Mapping[str, Any] | str,
    extra: Mapping[str, Any],
) -> None:
    _set_id(call, call_id)
    _set_name(call, name)
    _set_arguments(call, arguments)
    _set_call_extra(call, extra)


def _checked(
    role: Any,
    content: Any,
    tool_calls: Any,
    tool_call_id: Any,
    extra: Mapping[str, Any],
    index: int | None,
) -> tuple[str, Content, tuple[ToolCall, ...], str | None, Mapping[str, Any]]:
    if type(role) is not str:
        if not isinstance(role, str):
            raise InvalidMessage(
                f"role must be one of {', '.join(ROLES)}, not {shown(role)}",
                index=index,
                path="role",
            )
        role = str.__str__(role)
    if role not in ROLES:
        raise InvalidMessage(
            f"role must be one of {', '.join(ROLES)}, not {shown(role)}", index=index, path="role"
        )
    if content is not None and type(content) is not str:
        content = _checked_content(content, index)
    calls: tuple[ToolCall, ...] = ()
    if tool_calls is not None and tool_calls != ():
        calls = _checked_calls(role, tool_calls, index)
    if role == "tool":
        tool_call_id = _name(
            tool_call_id, "tool_call_id", index, "the id of the call that it answers"
        )
    elif tool_call_id is not None:
        raise InvalidMessage(
            f"only tool messages have a tool_call_id, this one is from {role}",
            index=index,
            path="tool_call_id",
        )
    return role, content, calls, tool_call_id, _frozen_extra(extra, index, "") if extra else EMPTY


def _checked_content(content: Any, index: int | None) -> Content:
    if isinstance(content, str):
        return str.__str__(content)
    if not isinstance(content, (list, tuple)):
        raise InvalidMessage(
            f"content must be a str, None or a list of parts, not {shown(content)}",
            index=index,
            path="content",
        )
    for place, part in enumerate(content):
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise InvalidMessage(
                f"a part must be a mapping with a str `type`, not {shown(part)}",
                index=index,
                path=f"content[{place}]",
            )
    frozen: tuple[Mapping[str, Any], ...] = _frozen(content, index, "content")
    return frozen


def _checked_calls(role: str, tool_calls: Any, index: int | None) -> tuple[ToolCall, ...]:
    # A list or tuple, as nearly all are, need not be held against the abstract classes.
    if type(tool_calls) not in (list, tuple) and (
        isinstance(tool_calls, (str, bytes, Mapping, ToolCall))
        or not isinstance(tool_calls, Iterable)
    ):
        raise InvalidMessage(
            f"tool_calls must be a list of calls, not {shown(tool_calls)}",
            index=index,
            path="tool_calls",
        )
    calls = []
    for place, call in enumerate(tool_calls):
        if role != "assistant":
            raise InvalidMessage(
                f"only assistant messages have tool_calls, this one is from {role}",
                index=index,
                path="tool_calls",
            )
        if type(call) is ToolCall:
            calls.append(call)
            continue
        path = f"tool_calls[{place}]"
        if not isinstance(call, Mapping):
            raise InvalidMessage(
                f"must be a ToolCall or a mapping, not {shown(call)}", index=index, path=path
            )
        missing = [name for name in ("id", "name", "arguments") if name not in call]
        if missing:
            hint = (
                "; OpenAI's nested `function` must be unfolded into name and arguments"
                if "function" in call
                else ""
            )
            raise InvalidMessage(f"has no {' and no '.join(missing)}{hint}", index=index, path=path)
        extra = (
            EMPTY if len(call) == 3 else {key: call[key] for key in call if key not in _CALL_OWN}
        )
        calls.append(
            ToolCall._trusted(
                *_checked_call(
                    call["id"], call["name"], call["arguments"], extra, index, path + "."
                )
            )
        )
    return tuple(calls)


def _checked_call(
    call_id: Any, name: Any, arguments: Any, extra: Mapping[str, Any], index: int | None, path: str
) -> tuple[str, str, Mapping[str, Any] | str, Mapping[str, Any]]:
    """The fields of a call, checked and frozen: id, name, arguments, extra."""
    if isinstance(arguments, str):
        arguments = arguments if type(arguments) is str else str.__str__(arguments)
    elif type(arguments) is dict or isinstance(arguments, Mapping):
        arguments = _frozen(arguments, index, path + "arguments")
    else:
        raise InvalidMessage(
            f"arguments must be a mapping or the raw text, not {shown(arguments)}",
            index=index,
            path=path + "arguments",
        )
    if not isinstance(name, str):
        raise InvalidMessage(
            f"name must be a str, not {shown(name)}", index=index, path=path + "name"
        )
    return (
        _name(call_id, path + "id", index, "an id of its own"),
        str.__str__(name),
        arguments,
        _frozen_extra(extra, index, path) if extra else EMPTY,
    )


def _name(value: Any, path: str, index: int | None, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidMessage(
            f"must be {what} (a non-empty str), not {shown(value)}", index=index, path=path
        )
    return value if type(value) is str else str.__str__(value)


def _frozen(value: Any, index: int | None, path: str, depth: int = 0) -> Any:
    try:
        return freeze(value, depth)
    except Unstorable as problem:
        inner = problem.path
        joint = "" if not inner or inner.startswith("[") or not path or path.endswith(".") else "."
        raise InvalidMessage(problem.problem, index=index, path=path + joint + inner) from None


def _frozen_extra(extra: Mapping[str, Any], index: int | None, path: str) -> FrozenDict:
    frozen: FrozenDict = _frozen(extra, index, path, -1)
    return frozen
