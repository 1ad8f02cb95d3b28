"""Replays the supervision family on a tree of real supervisors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from replay_compare import BadTrace
from replay_stage import Stage
from replay_steps import Scenario
from replay_tree import (
    Die,
    Outsider,
    World,
    from_fault,
    from_reason,
    make_spec,
    make_supervisor,
    to_milliseconds,
)

from keepwell import supervision
from keepwell.actors import ActorDied, Ignore, RequestError, StartFailed
from keepwell.supervision import ChildInfo, DynamicSupervisor


class SupervisionScenario(Scenario):
    """Plays a scenario of the family; its subject is the root supervisor."""

    def __init__(self, line: Mapping[str, Any], stage: Stage) -> None:
        super().__init__(line, stage)
        self.world = World(stage)
        self.parent = Outsider.start()
        self.stranger = Outsider.start()
        self.root: Any = None

    def play(self, step: Mapping[str, Any]) -> dict[str, Any]:
        self.world.events = []
        result = self.call({k: v for k, v in step.items() if k != "nosettle"})
        self.settle(ask_supervisors=not step.get("nosettle"))
        return {"result": result, "events": list(self.world.events)}

    def settle(self, *, ask_supervisors: bool = True) -> None:
        """Wait until all is quiet: supervisors answer, and nobody whom they list is on the way."""
        world, stage = self.world, self.stage
        while True:
            refs = list(world.labels)
            quiet = not ask_supervisors or all(map(self.has_settled, list(world.supervisors)))
            if self.root is not None and not self.root.is_alive():
                for ref in refs:
                    stage.end_of(ref)
            if quiet and stage.rest(refs) and len(world.labels) == len(refs):
                return

    def has_settled(self, ref: Any) -> bool:
        if not ref.is_alive():
            self.stage.end_of(ref)
            return True
        try:
            children = self.stage.wait(supervision.which_children(ref))
        except ActorDied:
            return False
        for info in children:
            if info.child == "restarting":
                return False
            if info.child is not None and not info.child.is_alive():
                self.stage.end_of(info.child)
                return False
        return True

    def request(self, function: Any, *args: Any) -> Any:
        """Ask the root; the answer's value, or `{"error": …}`."""
        if self.root is None:
            raise BadTrace("the supervisor has not been started")
        try:
            return self.stage.wait(function(self.root, *args))
        except supervision.InvalidChildSpec as fault:
            return {"error": from_fault(fault)}
        except supervision.ChildRequestError as refused:
            if refused.code == "already_started":
                return {"error": {"already_started": self.world.label(refused.ref)}}
            return {"error": refused.code}
        except (StartFailed, ActorDied) as failed:
            return {"error": from_reason(failed.reason)}
        except RequestError as refused:
            return {"error": refused.code}

    def started(self, answer: Any) -> Any:
        return answer if isinstance(answer, dict) else {"ok": self.world.label(answer)}

    def done(self, answer: Any) -> Any:
        return "ok" if answer is None else answer

    def target(self, child: str | None, pid_of: str | None) -> Any:
        if (child is None) == (pid_of is None):
            raise BadTrace("a step names a child either by `child` or by `pid_of`")
        return child if pid_of is None else self.ref(pid_of)

    def ref(self, child_id: str) -> Any:
        if child_id not in self.world.refs:
            raise BadTrace(f"{child_id!r} was never started")
        return self.world.refs[child_id]

    # Steps.

    def op_start(self) -> Any:
        settings = self.line["scenario"]["supervisor"]
        start = make_supervisor(self.world, settings, "root")
        try:
            ref = self.stage.wait(self.parent.call(("start", start), timeout=None))
        except (StartFailed, ActorDied) as failed:
            return {"error": from_reason(failed.reason)}
        if ref is Ignore:
            return "ignore"
        self.root = ref
        return "ok"

    def op_crash(self, child: str, how: str, reason: Any, survives: bool = False) -> str:
        ref = self.ref(child)
        if how == "signal":
            self.stage.wait(self.stranger.call(("exit", ref, reason)))
        elif how in ("exit", "error", "stop"):
            ref.tell(Die(how, reason))
        else:
            raise BadTrace(f"unknown way to crash {how!r}")
        if not survives:
            self.stage.end_of(ref)
        return "ok"

    def op_crash_many(self, children: list[str]) -> str:
        self.stage.wait(self.root.suspend())
        for child in children:
            ref = self.ref(child)
            ref.kill()
            self.stage.end_of(ref)
        self.stage.wait(self.root.resume())
        return "ok"

    def op_set_init(self, child: str, plan: list[Any]) -> str:
        self.world.plans[child] = (self.world.attempts.get(child, 0), plan)
        return "ok"

    def op_terminate_child(self, child: str | None = None, pid_of: str | None = None) -> Any:
        target = self.target(child, pid_of)
        return self.done(self.request(supervision.terminate_child, target))

    def op_restart_child(self, child: str | None = None, pid_of: str | None = None) -> Any:
        return self.started(self.request(supervision.restart_child, self.target(child, pid_of)))

    def op_delete_child(self, child: str | None = None, pid_of: str | None = None) -> Any:
        return self.done(self.request(supervision.delete_child, self.target(child, pid_of)))

    def op_get_childspec(self, child: str | None = None, pid_of: str | None = None) -> Any:
        spec = self.request(supervision.get_childspec, self.target(child, pid_of))
        if isinstance(spec, dict):
            return spec
        return {
            "ok": {
                "id": spec.id,
                "restart": spec.restart,
                "shutdown": to_milliseconds(spec.shutdown),
                "significant": spec.significant,
                "type": spec.type,
            }
        }

    def op_start_child(self, spec: Any = None, args: list[Any] | None = None) -> Any:
        if (spec is None) == (args is None):
            raise BadTrace("start_child takes either `spec` or `args`")
        if args is None:
            given = [make_spec(self.world, spec)]
        else:  # a static supervisor takes one argument, which then is no spec
            dynamic = issubclass(self.root.actor_class, DynamicSupervisor)
            given = args if dynamic else [args]
        return self.started(self.request(supervision.start_child, *given))

    def op_which_children(self) -> Any:
        answer = self.request(supervision.which_children)
        return answer if isinstance(answer, dict) else [self.node(info) for info in answer]

    def op_count_children(self) -> Any:
        count = self.request(supervision.count_children)
        if isinstance(count, dict):
            return count
        return {key: getattr(count, key) for key in ("specs", "active", "supervisors", "workers")}

    def op_check_childspecs(self, specs: list[Any], auto_shutdown: Any = None) -> Any:
        given = [make_spec(self.world, spec) for spec in specs]
        try:
            supervision.check_childspecs(given, auto_shutdown)
        except supervision.InvalidChildSpec as fault:
            return {"error": from_fault(fault)}
        return "ok"

    def op_signal_supervisor(
        self, reason: Any, from_: str | None = None, survives: bool = False
    ) -> str:
        if from_ not in (None, "stranger"):
            raise BadTrace(f"unknown sender {from_!r}")
        sender = self.parent if from_ is None else self.stranger
        self.stage.wait(sender.call(("exit", self.root, reason)))
        if not survives:
            self.stage.end_of(self.root)
        return "ok"

    def op_sleep(self, ms: float) -> str:
        self.stage.sleep(ms / 1000)
        return "ok"

    def op_align(self) -> str:
        now = self.stage.now
        self.stage.sleep(math.floor(now) + 1.02 - now)
        return "ok"

    # What is there at the end.

    def node(self, info: ChildInfo) -> dict[str, Any]:
        child = info.child if isinstance(info.child, str) else self.world.label(info.child)
        return {"id": info.id, "type": info.type, "child": child}

    def tree(self, ref: Any) -> list[dict[str, Any]]:
        nodes = []
        for info in reversed(self.stage.wait(supervision.which_children(ref))):
            node = self.node(info)
            if info.child in self.world.supervisors:
                node["children"] = self.tree(info.child)
            nodes.append(node)
        return nodes

    def final(self) -> dict[str, Any]:
        if self.root is None:
            return {"root": "not_started"}
        if not self.root.is_alive():
            return {"root": "dead", "reason": from_reason(self.root.exit_reason)}
        return {"root": "alive", "tree": self.tree(self.root)}


def run_scenario(line: Mapping[str, Any], stage: Stage) -> dict[str, Any]:
    """Play one scenario; returns what was seen in the shape of its trace."""
    return SupervisionScenario(line, stage).run()
