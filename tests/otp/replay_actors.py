"""Replays the process and genserver families.

Everything that the trace has an actor do is done by that actor, in its handler. The families of the
tables build on `ActorScenario`, whose actors they use as owners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from replay_compare import EXCEPTION, BadTrace
from replay_servers import BARES, SERVERS, Bare, Crash, Do, Leave, Note, to_seconds
from replay_stage import Stage
from replay_steps import Scenario

from keepwell.actors import (
    Actor,
    ActorDied,
    AskedItself,
    CallTimeout,
    Down,
    Exit,
    ExitActor,
    Ignore,
    Monitor,
    RequestError,
    Shutdown,
    StartFailed,
    groups,
    names,
)

T = TypeVar("T")


class ActorScenario(Scenario):
    """Plays scenarios of actors known by ids. Subclasses add steps and ways to `encode`."""

    def __init__(self, line: Mapping[str, Any], stage: Stage) -> None:
        super().__init__(line, stage)
        self.refs: dict[str, Any] = {}
        self.ids: dict[Any, str] = {}
        self.kept: dict[str, Any] = {}
        """What a step keeps under `as`, for `{"v": as}`."""

    def play(self, step: Mapping[str, Any]) -> dict[str, Any]:
        result = self.encode(self.call(step))
        self.stage.settle(list(self.refs.values()))
        return {"result": result}

    # -- terms -------------------------------------------------------------------------------

    def decode(self, term: Any) -> Any:
        """A recorded term as a Python value."""
        if isinstance(term, list):
            return [self.decode(item) for item in term]
        if not isinstance(term, dict):
            return term
        if len(term) == 1:
            (kind, value) = next(iter(term.items()))
            if kind == "a":
                return self.decode_word(value)
            if kind == "t":
                return self.decode_tuple(value)
            if kind == "p":
                return self.ref(value)
            if kind == "v":
                if value not in self.kept:
                    raise BadTrace(f"nothing is kept as {value!r}")
                return self.kept[value]
        raise BadTrace(f"unknown term {term!r}")

    def decode_word(self, word: str) -> Any:
        return None if word == "undefined" else word

    def decode_tuple(self, items: list[Any]) -> Any:
        if len(items) == 2 and items[1] == {"a": "stacktrace"}:
            return Crash(self.decode(items[0]))
        return tuple(self.decode(item) for item in items)

    def decode_reason(self, term: Any) -> Any:
        """The same for an exit reason: `{shutdown, x}` is a Shutdown."""
        reason = self.decode(term)
        if isinstance(reason, tuple) and len(reason) == 2 and reason[0] == "shutdown":
            return Shutdown(reason[1])
        return reason

    def encode(self, value: Any) -> Any:
        """A Python value in the normal form of the traces."""
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, list):
            return [self.encode(item) for item in value]
        if isinstance(value, tuple):
            return {"t": [self.encode(item) for item in value]}
        if isinstance(value, dict) and set(value) == {"exited"}:
            return {"exited": self.encode(value["exited"])}
        for name, kept in self.kept.items():
            if kept is value:
                return {"v": name}
        if value in self.ids:
            return {"p": self.ids[value]}
        return self.encode_object(value)

    def encode_object(self, value: Any) -> Any:
        if isinstance(value, Shutdown):
            return {"t": ["shutdown", self.encode(value.detail)]}
        if isinstance(value, Crash):
            return {EXCEPTION: self.encode(value.reason)}
        if isinstance(value, AskedItself):
            return "calling_self"
        if isinstance(value, Exit):
            return self.encode(("EXIT", value.ref, value.reason))
        if isinstance(value, Down):
            target = value.ref if value.name is None else value.name
            return self.encode(("DOWN", value.monitor, "process", target, value.reason))
        return repr(value)

    # -- actors ------------------------------------------------------------------------------

    def ref(self, actor_id: str) -> Any:
        if actor_id not in self.refs:
            raise BadTrace(f"no actor {actor_id!r}")
        return self.refs[actor_id]

    def keep_ref(self, actor_id: str, ref: Any) -> None:
        self.refs[actor_id] = ref
        self.ids[ref] = actor_id

    def as_actor(self, actor_id: str, function: Callable[[Any], T]) -> T:
        """Have an actor call `function(actor)`; its result. What it raises, it answers with."""

        ok, value = self.stage.wait(self.ref(actor_id).call(Do(function), timeout=None))
        if not ok:
            raise value
        result: T = value
        return result

    # -- steps: life and death ---------------------------------------------------------------

    def op_spawn(self, id: str, trap: bool = False) -> str:
        self.keep_ref(id, BARES[self.stage.kind].start(trap))
        return "ok"

    def op_spawn_link(self, by: str, id: str, trap: bool = False) -> str:
        bare: Any = BARES[self.stage.kind]

        def start(actor: Any) -> Any:
            return bare.options(link=actor.actor_ref).spawn(trap)

        self.keep_ref(id, self.as_actor(by, start))
        return "ok"

    def op_exit(self, id: str, how: str, reason: Any) -> Any:
        cause = self.decode_reason(reason)

        if how not in ("exit", "error"):
            raise BadTrace(f"unknown way to exit {how!r}")
        ref = self.ref(id)
        ref.tell(Leave(ExitActor(cause) if how == "exit" else Crash(cause)))
        return {"exited": self.stage.end_of(ref)}

    def op_alive(self, id: str) -> bool:
        return bool(self.ref(id).is_alive())

    def op_inbox(self, id: str) -> list[Any]:
        def empty(actor: Bare) -> list[Any]:
            inbox, actor.inbox = actor.inbox, []
            return inbox

        return self.as_actor(id, empty)

    def op_trap(self, id: str, value: bool) -> bool:
        def swap(actor: Actor) -> bool:
            old, actor.trap_exit = actor.trap_exit, value
            return old

        return self.as_actor(id, swap)

    def op_signal(self, by: str, target: str, reason: Any) -> str:
        ref, cause = self.ref(target), self.decode_reason(reason)
        self.as_actor(by, lambda _: ref.exit(cause))
        return "ok"

    def op_sleep(self, ms: float) -> str:
        self.stage.sleep(ms / 1000)
        return "ok"

    # -- steps: links and monitors -----------------------------------------------------------

    def op_link(self, by: str, target: str) -> Any:
        ref = self.ref(target)
        try:
            self.as_actor(by, lambda actor: actor.link(ref))
        except RequestError as error:
            return ("EXIT", Crash(error.code))
        return True

    def op_unlink(self, by: str, target: str) -> bool:
        ref = self.ref(target)
        self.as_actor(by, lambda actor: actor.unlink(ref))
        return True

    def op_monitor(
        self, by: str, target: str | None = None, name: str | None = None, as_: str = "m"
    ) -> str:
        if (target is None) == (name is None):
            raise BadTrace("a monitor has either a target or a name")
        watched = name if target is None else self.ref(target)
        self.kept[as_] = self.as_actor(by, lambda actor: actor.monitor(watched))
        return "ok"

    def op_demonitor(self, by: str, as_: str = "m") -> bool:
        watch = self.decode({"v": as_})
        if not isinstance(watch, Monitor):
            raise BadTrace(f"{as_!r} is no monitor")
        self.as_actor(by, lambda actor: actor.demonitor(watch))
        return True

    # -- steps: names, groups, sends ---------------------------------------------------------

    def op_register(self, name: str, id: str) -> Any:
        try:
            names.register(name, self.ref(id))
        except RequestError:
            return ("error", "badarg")
        return True

    def op_unregister(self, name: str) -> Any:
        try:
            names.unregister(name)
        except RequestError:
            return ("error", "badarg")
        return True

    def op_whereis(self, name: str) -> Any:
        return names.whereis(name)

    def op_send(self, by: str, msg: Any, to: str | None = None, name: str | None = None) -> Any:
        if (to is None) == (name is None):
            raise BadTrace("a send goes either to an actor or to a name")
        target: Any = names.named(name) if name is not None else self.ref(str(to))
        message = ("msg", self.decode(msg))
        try:
            self.as_actor(by, lambda _: target.tell(message))
        except RequestError as error:
            return ("raise", error.code)
        return "ok"

    def op_pg_join(self, group: str, id: str) -> str:
        groups.join(group, self.ref(id))
        return "ok"

    def op_pg_leave(self, group: str, id: str) -> str:
        try:
            groups.leave(group, self.ref(id))
        except RequestError as error:
            return error.code
        return "ok"

    def op_pg_members(self, group: str) -> Any:
        return list(groups.members(group))

    # -- steps: servers ----------------------------------------------------------------------

    def op_gs_start(
        self,
        id: str,
        name: str | None = None,
        init: str | None = None,
        timeout: float | str | None = None,
    ) -> Any:
        server: Any = SERVERS[self.stage.kind]
        starter = server.options(name=name, timeout=to_seconds(timeout))
        try:
            ref = self.stage.wait(starter.spawn(self.stage, init))
        except StartFailed as failed:
            return ("error", failed.reason)
        if ref is Ignore:
            return "ignore"
        self.keep_ref(id, ref)
        return "ok"

    def op_gs_stop(
        self,
        id: str,
        reason: Any = "normal",
        timeout: float | str | None = None,
    ) -> Any:
        ref, cause = self.ref(id), self.decode_reason(reason)
        try:
            stopped = ref.stop(reason=cause, timeout=to_seconds(timeout))
        except CallTimeout:
            return ("caller_raises", "exit", "timeout")
        return "ok" if stopped else ("caller_raises", "exit", "noproc")

    def op_call(self, by: str, to: str, req: Any, timeout: float | str = 5000) -> Any:
        ref, request = self.ref(to), self.decode_request(req)
        seconds = to_seconds(timeout)
        try:
            answer = self.as_actor(by, lambda _: ref.call(request, timeout=seconds))
        except CallTimeout:
            return ("caller_raises", "exit", "timeout")
        except ActorDied as died:
            return ("caller_raises", "exit", died.reason)
        except AskedItself as error:
            return ("caller_raises", "exit", error)
        return ("reply", answer)

    def decode_request(self, req: Any) -> Any:
        """A request is a word, or a mapping with terms in it."""
        if isinstance(req, dict) and not set(req) <= {"a", "t", "p", "v"}:
            return {key: self.decode(value) for key, value in req.items()}
        if isinstance(req, dict) and set(req) == {"v"}:
            raise BadTrace(f"unknown request {req!r}")
        return self.decode(req)

    def op_cast(self, to: str, req: Any) -> str:
        self.ref(to).tell(Note(self.decode(req)))
        return "ok"

    op_info = op_cast

    def op_seen(self, id: str) -> Any:
        return self.stage.wait(self.ref(id).call("seen"))

    def op_get_state(self, id: str) -> Any:
        return self.stage.wait(self.ref(id).get_state())

    def op_suspend(self, id: str) -> str:
        self.stage.wait(self.ref(id).suspend())
        return "ok"

    def op_resume(self, id: str) -> str:
        self.stage.wait(self.ref(id).resume())
        return "ok"


def run_scenario(line: Mapping[str, Any], stage: Stage) -> dict[str, Any]:
    """Play one scenario; returns what was seen in the shape of its trace."""
    return ActorScenario(line, stage).run()
