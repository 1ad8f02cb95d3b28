"""Registered names: addresses that survive restarts. All act on the current actor system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import bonds
from .context import current_system
from .errors import RequestError
from .future import Future
from .ref import CALL_TIMEOUT

if TYPE_CHECKING:
    from .ref import ActorRef
    from .system import ActorSystem


class NotRegistered(RequestError):
    """Nobody is registered under the name (REG-4)."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"no actor is registered as {name!r}: start one with name={name!r}, or try again if it "
            "is being restarted",
            code="badarg",
        )
        self.name = name


class NameTaken(RequestError):
    """The name belongs to another actor, `ref` (REG-1)."""

    def __init__(self, name: str, ref: ActorRef[Any]) -> None:
        super().__init__(f"{name!r} is the name of {ref}: unregister it first", code="badarg")
        self.name, self.ref = name, ref


def register(name: str, ref: ActorRef[Any]) -> None:
    """Give a living actor its name. One name an actor, one actor a name; freed at its end.

    Raises NameTaken; RequestError if the actor is dead or has another name.
    """
    owner = bonds.register(ref, name, ref.system.names_table)
    if owner is not None:
        raise NameTaken(name, owner)


def unregister(name: str, *, system: ActorSystem | None = None) -> None:
    """Free a name. Raises NotRegistered."""
    if not bonds.unregister(name, (system or current_system()).names_table):
        raise NotRegistered(name)


def whereis(name: str, *, system: ActorSystem | None = None) -> ActorRef[Any] | None:
    """Return who has the name now, None if nobody."""
    return (system or current_system()).names_table.get(name)


def registered(*, system: ActorSystem | None = None) -> list[str]:
    """Return all names."""
    return list((system or current_system()).names_table)


def named(name: str, *, system: ActorSystem | None = None) -> NamedRef:
    """Return an address that leads to whoever has `name` at each use."""
    return NamedRef(name, system or current_system())


class NamedRef:
    """An address by name: each use goes to the incarnation that has the name then."""

    __slots__ = ("name", "system")

    def __init__(self, name: str, system: ActorSystem) -> None:
        self.name = name
        self.system = system

    def __repr__(self) -> str:
        return f"<NamedRef {self.name!r}>"

    def ref(self) -> ActorRef[Any]:
        """Return who has the name now. Raises NotRegistered."""
        ref = self.system.names_table.get(self.name)
        if ref is None:
            raise NotRegistered(self.name)
        return ref

    def tell(self, message: Any) -> None:
        """As `ActorRef.tell`. Raises NotRegistered."""
        self.ref().tell(message)

    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any:
        """As `ActorRef.ask`. Raises NotRegistered."""
        return self.ref().ask(message, block=block, timeout=timeout)

    def call(self, message: Any, *, timeout: float | None = CALL_TIMEOUT) -> Future[Any]:
        """As `ActorRef.call`; the future fails with NotRegistered."""
        try:
            ref = self.ref()
        except NotRegistered as error:
            return Future.failed(error)
        return ref.call(message, timeout=timeout)
