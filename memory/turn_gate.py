"""One turn at a time per conversation, first come first served (KF-9).

The gates of a store are shared by all agents and kernels that use it. They live beside the
provider actor, not in it: a gate that a turn holds stays held while the provider, or the agent
whose turn it is, is restarted. The holder is therefore an object that outlives an incarnation; it
may take its own gate again (a resumed turn), and one release gives it back.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from ..actors.future import Future

GRANTED: Final[Future[None]] = Future.of(None)


@dataclass(slots=True)
class _Gate:
    holder: object
    waiting: deque[tuple[object, Future[None]]] = field(default_factory=deque)


class TurnGates:
    """The gates of one store's conversations. Any thread may call; nothing here waits.

    Memory: one entry a held gate, none for idle conversations.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gates: dict[str, _Gate] = {}

    def acquire(self, conversation_id: str, holder: object) -> Future[None]:
        """A future that is done when `holder` has the gate; done at once if it is free or its own.

        Whoever stops waiting must call `release`, which also withdraws a waiting request.
        """
        with self._lock:
            gate = self._gates.get(conversation_id)
            if gate is None:
                self._gates[conversation_id] = _Gate(holder)
                return GRANTED
            if gate.holder is holder:
                return GRANTED
            for waiting, future in gate.waiting:
                if waiting is holder:
                    return future
            turn: Future[None] = Future()
            gate.waiting.append((holder, turn))
            return turn

    def release(self, conversation_id: str, holder: object) -> None:
        """Give the gate to the next that waits; who only waits is withdrawn. Idempotent."""
        granted: Future[None] | None = None
        with self._lock:
            gate = self._gates.get(conversation_id)
            if gate is None:
                return
            if gate.holder is holder:
                if gate.waiting:
                    gate.holder, granted = gate.waiting.popleft()
                else:
                    del self._gates[conversation_id]
            else:
                for entry in gate.waiting:
                    if entry[0] is holder:
                        gate.waiting.remove(entry)
                        break
        if granted is not None:
            granted.complete(None)

    def holder(self, conversation_id: str) -> object | None:
        """Who has the gate now, None if it is free."""
        with self._lock:
            gate = self._gates.get(conversation_id)
            return None if gate is None else gate.holder

    def held(self) -> int:
        """How many conversations are in a turn."""
        return len(self._gates)


_gates_of: weakref.WeakKeyDictionary[object, TurnGates] = weakref.WeakKeyDictionary()
_gates_lock = threading.Lock()


def turn_gates(owner: object) -> TurnGates:
    """The gates that belong to `owner` (a store or a custom provider), made at the first call.

    All handles of one of our stores share its port, and with it its gates.
    """
    key = getattr(owner, "port", owner)
    with _gates_lock:
        gates = _gates_of.get(key)
        if gates is None:
            gates = _gates_of[key] = TurnGates()
        return gates
