"""A store that is not one of ours, in front of a provider."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from ..actors.context import current_system
from ..actors.errors import KeepwellError
from ..actors.future import Future
from ..stores.errors import StoreError
from .foreign_log import Fault, guarded


class ForeignStore:
    """Any conversation store; its answers may be values or awaitables of any kind.

    Each call starts on the system's loop, in the order of the calls. What the store raises on
    purpose (a KeepwellError) passes, anything else becomes a StoreError with its cause, for the one
    who asked: agents leave their turn open then, and nobody crashes. Rules: AG-5, PV-7.
    """

    def __init__(self, store: Any) -> None:
        self._store = store

    def add(self, conversation_id: str, messages: Any, **options: Any) -> Future[Any]:
        """The store's `add`."""
        return current_system().run(self._call("add", conversation_id, messages, **options))

    def read(self, conversation_id: str, **options: Any) -> Future[Any]:
        """The store's `read`."""
        return current_system().run(self._call("read", conversation_id, **options))

    def clear(self, conversation_id: str) -> Future[Any]:
        """The store's `clear`."""
        return current_system().run(self._call("clear", conversation_id))

    def _log_fault(self, conversation_id: str) -> Fault:
        return lambda problem: StoreError(
            f"{self._store!r}: read({conversation_id!r}) gave a log that {problem}"
        )

    async def _call(self, method: str, conversation_id: str, *args: Any, **options: Any) -> Any:
        try:
            answer = getattr(self._store, method)(conversation_id, *args, **options)
            if inspect.isawaitable(answer):
                answer = await answer
            return guarded(answer, self._log_fault(conversation_id)) if method == "read" else answer
        except KeepwellError:
            raise
        except BaseException as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the system ends
            raise StoreError(
                f"{self._store!r}: {method}({conversation_id!r}) raised "
                f"{type(error).__name__}: {error}"
            ) from error
