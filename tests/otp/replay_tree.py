"""The actors of the supervision family: supervisors and workers that note what they do."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from typing import Any

from replay_compare import BadTrace
from replay_stage import Stage

from keepwell.actors import (
    Actor,
    AsyncActor,
    Exit,
    ExitActor,
    Ignore,
    Reply,
    Shutdown,
    StartFailed,
    ThreadActor,
)
from keepwell.supervision import (
    DynamicSupervisor,
    FailedToStartChild,
    InvalidSupervisor,
    Supervisor,
)

SUPERVISOR_KEYS = {
    "strategy", "intensity", "period", "auto_shutdown", "init_returns", "children",
}  # fmt: skip
CHILD_KEYS = {
    "id", "restart", "shutdown", "significant", "type", "supervisor", "omit", "behaviour",
}  # fmt: skip
BEHAVIOUR_KEYS = {"trap_exit", "init", "on_terminate"}


class Crash(Exception):
    """The uncaught exception of a scenario: `{"crash": reason}`."""

    def __init__(self, reason: Any) -> None:
        super().__init__(reason)
        self.reason = reason


# -- reasons and values --------------------------------------------------------------------------


def to_reason(term: Any) -> Any:
    """A reason of the trace as an exit reason."""
    if isinstance(term, str):
        return term
    if isinstance(term, dict) and len(term) == 1:
        if "shutdown" in term:
            return Shutdown(to_reason(term["shutdown"]))
        if "crash" in term:
            return Crash(to_reason(term["crash"]))
    raise BadTrace(f"unknown reason {term!r}")


def from_reason(reason: Any) -> Any:
    """An exit reason as a reason of the trace."""
    if isinstance(reason, Shutdown):
        return {"shutdown": from_reason(reason.detail)}
    if isinstance(reason, FailedToStartChild):
        return {"failed_to_start_child": reason.id, "reason": from_reason(reason.reason)}
    if isinstance(reason, Crash):
        return {"crash": from_reason(reason.reason)}
    if isinstance(reason, InvalidSupervisor):
        return {reason.code: from_fault(reason.fault)}
    return reason if isinstance(reason, str) else repr(reason)


def from_fault(fault: Any) -> Any:
    """What is wrong with a spec or setting: OTP's word, with the value where there is one."""
    if isinstance(fault, tuple):
        return [{"id": child_id} for child_id in fault]
    value = fault.value
    if fault.code.startswith("missing_"):
        return fault.code
    if fault.code == "invalid_shutdown":
        value = to_milliseconds(value)
    return {fault.code: value}


def to_milliseconds(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return round(value * 1000)
    return value


def to_seconds(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value / 1000
    return value


def known(what: str, given: Mapping[str, Any], keys: set[str]) -> None:
    unknown = set(given) - keys
    if unknown:
        raise BadTrace(f"unknown key in {what}: {', '.join(sorted(unknown))}")


# -- the actors ----------------------------------------------------------------------------------


class World:
    """What all actors of a scenario share: events, start attempts, plans, refs."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.lock = threading.Lock()
        self.events: list[dict[str, Any]] = []
        self.attempts: dict[str, int] = {}
        self.plans: dict[str, tuple[int, list[Any]]] = {}
        self.labels: dict[Any, str] = {}
        self.refs: dict[str, Any] = {}
        """The last incarnation of each id."""
        self.supervisors: list[Any] = []

    def note(self, **event: Any) -> None:
        with self.lock:
            self.events.append(event)

    def next_attempt(self, child_id: str) -> int:
        with self.lock:
            self.attempts[child_id] = self.attempts.get(child_id, 0) + 1
            return self.attempts[child_id]

    def outcome(self, child_id: str, n: int, plan: list[Any]) -> Any:
        since, plan = self.plans.get(child_id, (0, plan))
        return plan[min(n - since, len(plan)) - 1]

    def born(self, ref: Any, child_id: str, n: int) -> None:
        """From now on this incarnation's end is noted, in the moment in which it happens."""
        self.labels[ref] = f"{child_id}#{n}"
        self.refs[child_id] = ref
        ref.on_exit(
            lambda reason: self.note(ev="exit", id=child_id, n=n, reason=from_reason(reason))
        )

    def label(self, ref: Any) -> Any:
        return self.labels.get(ref, repr(ref)) if ref is not None else None


def act(outcome: Any) -> Any:
    """Do what an outcome of `init` says."""
    if outcome == "ok":
        return None
    if outcome == "ignore":
        return Ignore
    if isinstance(outcome, dict) and len(outcome) == 1:
        if "stop" in outcome or "exit" in outcome:
            raise ExitActor(to_reason(next(iter(outcome.values()))))
        if "raise" in outcome:
            raise Crash(to_reason(outcome["raise"]))
    raise BadTrace(f"unknown outcome {outcome!r}")


class Worker(Actor):
    """A child that notes its start, its end, and the Exits that it gets.

    child_id: the first argument of a dynamic child's start; further ones say nothing.
    """

    otp_shutdown = True

    def __init__(
        self, world: World, behaviour: Mapping[str, Any], child_id: str = "undefined", *_: Any
    ) -> None:
        super().__init__()
        known("behaviour", behaviour, BEHAVIOUR_KEYS)
        self.world, self.behaviour, self.child_id = world, behaviour, child_id
        self.trap_exit = behaviour.get("trap_exit", False)

    def on_start(self) -> Any:
        world, child_id = self.world, self.child_id
        self.n = world.next_attempt(child_id)
        outcome = world.outcome(child_id, self.n, self.behaviour.get("init", ["ok"]))
        world.note(ev="init", id=child_id, n=self.n, outcome=outcome)
        if outcome == "ok":
            world.born(self.actor_ref, child_id, self.n)
        return act(outcome)

    def terminating(self) -> tuple[str, Any]:
        """Note that the hook was entered; what it is to do, and for how many seconds."""
        reason = from_reason(self.exit_reason)
        self.world.note(ev="terminate", id=self.child_id, n=self.n, reason=reason)
        plan = self.behaviour.get("on_terminate", "ok")
        if plan in ("ok", "hang"):
            return plan, None
        if isinstance(plan, dict) and set(plan) == {"sleep"}:
            return "sleep", plan["sleep"] / 1000
        if isinstance(plan, dict) and set(plan) == {"exit"}:
            raise ExitActor(to_reason(plan["exit"]))
        raise BadTrace(f"unknown on_terminate {plan!r}")

    def on_stop(self) -> Any:
        plan, seconds = self.terminating()
        if plan == "hang":
            self.world.stage.hang()
        elif plan == "sleep":
            self.world.stage.sleep(seconds)

    def on_failure(self, *_: Any) -> Any:
        return self.on_stop()

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, Exit):
            reason = from_reason(message.reason)
            self.world.note(ev="info_exit", id=self.child_id, reason=reason)
        elif isinstance(message, Die):
            message.carry_out(self)


class ThreadWorker(Worker, ThreadActor):
    """The same in a thread of its own."""


class AsyncWorker(Worker, AsyncActor):
    """The same on an event loop."""

    async def on_stop(self) -> None:
        plan, seconds = self.terminating()
        if plan == "hang":
            await self.world.stage.hang_async()
        elif plan == "sleep":
            await self.world.stage.pause(seconds)


WORKERS = {"light": Worker, "thread": ThreadWorker, "async": AsyncWorker}


class Die:
    """The order to end from inside."""

    def __init__(self, how: str, reason: Any) -> None:
        self.how, self.reason = how, reason

    def carry_out(self, actor: Actor) -> None:
        if self.how == "exit":
            raise ExitActor(to_reason(self.reason))
        if self.how == "error":
            raise Crash(to_reason(self.reason))
        actor.stop(to_reason(self.reason))


class _Noted(Supervisor):
    """A supervisor that notes its start and its end."""

    otp_shutdown = True
    world: World
    child_id: str
    ignored: bool

    def on_start(self) -> Any:
        self.n = self.world.next_attempt(self.child_id)
        self.world.note(ev="init", id=self.child_id, n=self.n, outcome="ok")
        self.world.born(self.actor_ref, self.child_id, self.n)
        self.world.supervisors.append(self.actor_ref)
        return Ignore if self.ignored else super().on_start()

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, Die):
            return message.carry_out(self)
        return super().on_receive(message)


class NotedSupervisor(_Noted):
    pass


class NotedDynamicSupervisor(_Noted, DynamicSupervisor):
    pass


def start_of(world: World, spec: Mapping[str, Any], child_id: str) -> Any:
    """The actor class of a child, with its arguments."""
    if "supervisor" in spec:
        return functools.partial(make_supervisor(world, spec["supervisor"], child_id))
    return functools.partial(WORKERS[world.stage.kind], world, spec.get("behaviour", {}), child_id)


def make_supervisor(world: World, settings: Mapping[str, Any], name: str) -> Any:
    """A supervisor class with its arguments filled in."""
    known("supervisor", settings, SUPERVISOR_KEYS)
    returns = settings.get("init_returns")
    if returns not in (None, "ignore"):
        raise BadTrace(f"unknown init_returns {returns!r}")
    dynamic = settings.get("strategy") == "simple_one_for_one"
    base = NotedDynamicSupervisor if dynamic else NotedSupervisor
    fields = {"world": world, "child_id": name, "ignored": returns == "ignore"}
    cls: Any = type(base.__name__, (base,), fields)
    renamed = {"intensity": "max_restarts", "period": "max_seconds"}
    options = {
        renamed.get(key, key): settings[key]
        for key in ("strategy", "intensity", "period", "auto_shutdown")
        if key in settings
    }
    children = settings.get("children", [])
    if not dynamic:
        return functools.partial(cls, [make_spec(world, c) for c in children], **options)
    del options["strategy"]
    templates = [make_template(world, child) for child in children]
    return functools.partial(cls, templates[0] if len(templates) == 1 else templates, **options)


def make_spec(world: World, child: Mapping[str, Any]) -> dict[str, Any]:
    """A child spec as a mapping, with the keys that the scenario gives."""
    known("child", child, CHILD_KEYS)
    spec = {k: child[k] for k in ("id", "restart", "type", "significant") if k in child}
    if "shutdown" in child:
        spec["shutdown"] = to_seconds(child["shutdown"])
    spec["start"] = start_of(world, child, child["id"])
    for key in child.get("omit", ()):
        spec.pop(key, None)
    return spec


def make_template(world: World, child: Mapping[str, Any]) -> dict[str, Any]:
    """The same for a dynamic child, whose id is the first argument of its start."""
    spec = make_spec(world, child)
    if "start" in spec and "supervisor" not in child:
        worker = WORKERS[world.stage.kind]
        spec["start"] = functools.partial(worker, world, child.get("behaviour", {}))
    return spec


class Outsider(Actor):
    """The root's parent, or a stranger: starts the tree, sends signals, notes nothing."""

    trap_exit = True

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, Exit):
            return None
        kind, what, *rest = message
        if kind == "start":
            try:
                starter = what.func.options(parent=self.actor_ref)
                return starter.start(*what.args, **what.keywords)
            except StartFailed as failed:
                raise Reply(failed) from None
        reason = to_reason(rest[0])
        return what.exit(reason)
