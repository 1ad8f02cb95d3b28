"""The commonest schema of a tool's arguments, flat and of plain types, checked in a glance.

`json_schema.validate` walks value and schema together and says what does not fit; nearly always
everything does. Where a look at the types of the members proves that, the walk is left out. What
is no proof (another type that may be coerced, a member that is missing or unknown) goes the long
way, so both give the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from .json_schema import ANNOTATIONS

_EXACT: Final[Mapping[object, frozenset[type]]] = {
    "string": frozenset({str}),
    "integer": frozenset({int}),
    "number": frozenset({int, float}),
    "boolean": frozenset({bool}),
}
_OF_OBJECT: Final = ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}
_OF_MEMBER: Final = ANNOTATIONS | {"type"}


class FlatSchema:
    """An object whose members have a plain type each, and no other rule."""

    __slots__ = ("_required", "_types")

    def __init__(self, types: Mapping[str, frozenset[type]], required: frozenset[str]) -> None:
        self._types = types
        self._required = required

    @classmethod
    def of(cls, schema: Mapping[str, object]) -> FlatSchema | None:
        """The schema in this form; None if it says more than can be checked so."""
        members, required = schema.get("properties", {}), schema.get("required", ())
        if (
            schema.get("type") != "object"
            or not schema.keys() <= _OF_OBJECT
            or not isinstance(members, Mapping)
            or not isinstance(required, Sequence)
        ):
            return None
        types: dict[str, frozenset[type]] = {}
        for name, member in members.items():
            if not isinstance(member, Mapping) or not member.keys() <= _OF_MEMBER:
                return None
            kind = member.get("type")
            if not isinstance(kind, str) or kind not in _EXACT:
                return None
            types[name] = _EXACT[kind]
        return cls(types, frozenset(map(str, required)))

    def fits(self, value: Mapping[str, object]) -> bool:
        """Whether it surely fits, without coercion; False where `validate` must look."""
        types = self._types
        for name, item in value.items():
            fitting = types.get(name)
            if fitting is None or type(item) not in fitting:
                return False
        return self._required <= value.keys()
