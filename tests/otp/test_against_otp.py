"""Random scenarios, played on a real Erlang/OTP and on keepwell, must agree.

Runs where Erlang is installed (Debian: erlang-base). KEEPWELL_OTP_SCENARIOS sets how many.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import replay

COUNT = int(os.environ.get("KEEPWELL_OTP_SCENARIOS", "40"))
SEED = int(os.environ.get("KEEPWELL_OTP_SEED", "1"))
RECORDER = Path(__file__).with_name("otp_recorder.erl")

pytestmark = pytest.mark.skipif(
    not (shutil.which("erlc") and shutil.which("erl")), reason="Erlang is not installed"
)


class Author:
    """Writes one scenario."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.trapping: dict[str, bool] = {}
        self.ids: list[str] = []
        """Ids of workers anywhere in the tree."""
        self.top: list[str] = []
        """Ids of the root's own children."""
        self.nested: set[str] = set()
        """Ids of the root's own children that are supervisors."""
        self.significant = False
        self.numbers = itertools.count(1)
        self.hanging: set[str] = set()

    def scenario(self) -> dict[str, Any]:
        rng = self.rng
        if rng.random() < 0.2:
            supervisor = self.dynamic()
            steps = self.dynamic_steps()
        else:
            supervisor = self.supervisor("abcde"[: rng.randrange(1, 6)], depth=0)
            steps = self.steps()
        if rng.random() < 0.3:
            reason = rng.choice(["shutdown", "normal", "boom", {"shutdown": "x"}])
            dynamic = supervisor["strategy"] == "simple_one_for_one"
            loose = {"unordered": True} if dynamic else {}
            steps.append({"op": "signal_supervisor", "reason": reason, **loose})
        return {"supervisor": supervisor, "steps": [{"op": "start"}, *steps]}

    def supervisor(self, names: str, depth: int) -> dict[str, Any]:
        rng = self.rng
        significant = rng.random() < 0.25
        if not depth:
            self.significant = significant
        settings: dict[str, Any] = {
            "strategy": rng.choice(["one_for_one", "one_for_all", "rest_for_one"]),
            "intensity": rng.randrange(5),
            "period": 3600,
        }
        if significant:
            settings["auto_shutdown"] = rng.choice(["any_significant", "all_significant"])
        children = []
        for name in names:
            child_id = f"{name}{next(self.numbers)}" if depth else name
            if not depth:
                self.top.append(child_id)
            if depth < 2 and rng.random() < 0.15:
                self.nested.add(child_id)
                child: dict[str, Any] = self.spec(child_id, significant, worker=False)
                nested = "pqr"[: rng.randrange(4)]
                child |= {"type": "supervisor", "supervisor": self.supervisor(nested, depth + 1)}
                children.append(child)
            else:
                children.append(self.spec(child_id, significant))
        return {**settings, "children": children}

    def spec(self, child_id: str, significant: bool, worker: bool = True) -> dict[str, Any]:
        rng = self.rng
        spec: dict[str, Any] = {"id": child_id}
        if rng.random() < 0.7:
            spec["restart"] = rng.choice(["permanent", "permanent", "transient", "temporary"])
        if significant and spec.get("restart", "permanent") != "permanent" and rng.random() < 0.6:
            spec["significant"] = True
        if worker:
            if rng.random() < 0.3:
                spec["shutdown"] = rng.choice(["brutal_kill", "infinity", 1000])
            spec["behaviour"] = self.behaviour(child_id)
            if len(child_id) == 1 and rng.random() < 0.05:
                # Ends by being killed only, so its supervisor alone may end it.
                spec["shutdown"] = 20
                spec["behaviour"]["on_terminate"] = "hang"
                self.hanging.add(child_id)
            if child_id not in self.nested:  # a supervisor takes no orders to crash
                self.ids.append(child_id)
        return spec

    def behaviour(self, child_id: str) -> dict[str, Any]:
        rng = self.rng
        # The same for all specs of an id: which of them is the one that lives is not known here.
        traps = self.trapping.setdefault(child_id, rng.random() < 0.8)
        behaviour: dict[str, Any] = {"trap_exit": traps}
        if rng.random() < 0.35:
            behaviour["init"] = self.plan(first_ok=0.85)
        if rng.random() < 0.1:
            behaviour["on_terminate"] = {"exit": rng.choice(["oops", "normal"])}
        return behaviour

    def plan(self, first_ok: float) -> list[Any]:
        rng = self.rng
        failures = [{"stop": "bad"}, {"exit": "bad"}, {"raise": "bad"}, {"exit": "normal"}]
        outcomes = ["ok", "ok", "ignore", rng.choice(failures), rng.choice(failures)]
        first = "ok" if rng.random() < first_ok else rng.choice(outcomes)
        return [first, *rng.choices(outcomes, k=rng.randrange(5))]

    def steps(self) -> list[dict[str, Any]]:
        rng, steps = self.rng, []
        for _ in range(rng.randrange(2, 12)):
            some_id = rng.choice([*self.top, *"fg"])
            op = rng.choice(
                ["crash"] * 6
                + ["crash_many", "set_init", "start_child", "terminate_child", "restart_child"]
                + ["delete_child", "get_childspec", "which_children", "count_children"]
            )
            if op == "crash" and self.nested and rng.random() < 0.15:
                steps.append(
                    {
                        "op": op,
                        "child": rng.choice(sorted(self.nested)),
                        "how": "signal",
                        "reason": "kill",
                        "unordered": True,
                    }
                )
            elif op == "crash":
                own = [i for i in self.ids if i not in self.hanging]
                steps.append(self.crash(rng.choice(own or ["nobody"])))
            elif op == "crash_many":
                own = [i for i in self.top if i not in self.nested]
                picked = rng.sample(own, min(len(own), rng.randrange(1, 4)))
                steps.append({"op": op, "children": picked})
            elif op == "set_init":
                child = rng.choice(self.ids or ["nobody"])
                steps.append({"op": op, "child": child, "plan": self.plan(0.5)})
            elif op == "start_child":
                steps.append({"op": op, "spec": self.spec(some_id, self.significant)})
            elif op in ("which_children", "count_children"):
                steps.append({"op": op})
            else:
                steps.append({"op": op, "child": some_id})
        return steps

    def crash(self, child_id: str) -> dict[str, Any]:
        rng = self.rng
        how = rng.choice(["exit", "error", "stop", "signal"])
        reasons: list[Any] = ["normal", "shutdown", {"shutdown": "x"}, "boom", "boom", "killed"]
        if how == "signal":
            reasons = [*reasons, "kill"]
        elif how == "error":
            # error(shutdown) ends as {shutdown, Stack} in OTP, which no exception can look like.
            reasons = ["boom", "normal", "killed"]
        reason = rng.choice(reasons)
        step = {"op": "crash", "child": child_id, "how": how, "reason": reason}
        lives = reason != "kill" if self.trapping.get(child_id) else reason == "normal"
        return {**step, "survives": True} if how == "signal" and lives else step

    def dynamic(self) -> dict[str, Any]:
        rng = self.rng
        spec = self.spec("tpl", significant=False)
        # After a restart that was ignored OTP lists a child that is none, and may crash on it.
        plan = spec["behaviour"].get("init", ["ok"])
        spec["behaviour"]["init"] = [*plan[:1], *("ok" if x == "ignore" else x for x in plan[1:])]
        if plan == ["ignore"]:
            spec["behaviour"]["init"].append("ok")
        self.trapping.update(dict.fromkeys("xyz", self.trapping["tpl"]))
        return {
            "strategy": "simple_one_for_one",
            "intensity": rng.randrange(5),
            "period": 3600,
            "children": [spec],
        }

    def dynamic_steps(self) -> list[dict[str, Any]]:
        rng, steps = self.rng, []
        for _ in range(rng.randrange(3, 12)):
            child = rng.choice("xyz")
            op = rng.choice(["start_child"] * 3 + ["crash"] * 3 + ["pid", "id", "count"])
            if op == "start_child":
                steps.append({"op": op, "args": [child]})
            elif op == "crash":
                steps.append(self.crash(child))
            elif op == "pid":
                steps.append({"op": "terminate_child", "pid_of": child})
            elif op == "id":
                refused = rng.choice(["terminate_child", "restart_child", "delete_child"])
                steps.append({"op": refused, "child": child})
            else:
                steps.append({"op": rng.choice(["count_children", "which_children"])})
        # A group end of dynamic children has no order.
        return [{**step, "unordered": True} for step in steps]


def processes(seed: int) -> dict[str, Any]:
    """A scenario of bare processes: links, signals, monitors, names, groups."""
    rng = random.Random(seed)
    ids, steps = "abcd", [{"op": "spawn", "id": i, "trap": rng.random() < 0.4} for i in "abcd"]
    reasons = ["normal", "shutdown", "boom", "boom", "killed", "noproc"]
    monitors = itertools.count(1)

    def one() -> dict[str, Any]:
        by, target = rng.choice(ids), rng.choice(ids)
        name, group = rng.choice(["n1", "n2"]), rng.choice(["g1", "g2"])
        either = rng.choice([{"name": name}, {"to": target}])
        return rng.choice(
            [
                {"op": "link", "by": by, "target": target},
                {"op": "link", "by": by, "target": target},
                {"op": "link", "by": by, "target": target},
                {"op": "unlink", "by": by, "target": target},
                {"op": "exit", "id": by, "how": "exit", "reason": rng.choice([*reasons, "kill"])},
                {"op": "exit", "id": by, "how": "error", "reason": rng.choice(reasons)},
                {"op": "signal", "by": by, "target": target, "reason": rng.choice(reasons)},
                {"op": "signal", "by": by, "target": target, "reason": "kill"},
                {"op": "trap", "id": by, "value": rng.random() < 0.7},
                {"op": "monitor", "by": by, "target": target, "as": f"m{next(monitors)}"},
                {"op": "monitor", "by": by, "name": name, "as": f"m{next(monitors)}"},
                {"op": "demonitor", "by": by, "as": f"m{rng.randrange(1, 9)}"},
                {"op": "register", "name": name, "id": by},
                {"op": "unregister", "name": name},
                {"op": "whereis", "name": name},
                {"op": "send", "by": by, "msg": rng.choice("xyz"), **either},
                {"op": "pg_join", "group": group, "id": by},
                {"op": "pg_leave", "group": group, "id": by},
                {"op": "pg_members", "group": group, "sort": True},
                {"op": "inbox", "id": by, "sort": True},
                {"op": "alive", "id": by},
            ]
        )

    steps += [one() for _ in range(rng.randrange(8, 30))]
    for child in ids:
        steps += [{"op": "alive", "id": child}, {"op": "inbox", "id": child, "sort": True}]
    return {"family": "process", "steps": steps}


def servers(seed: int) -> dict[str, Any]:
    """A scenario of two servers, a caller, and everything that may be asked of a server."""
    rng = random.Random(seed)
    steps: list[dict[str, Any]] = [{"op": "spawn", "id": "c", "trap": rng.random() < 0.3}]
    suspended: set[str] = set()
    numbers = itertools.count(1)
    inits = ["none", "none", "none", "self_cast_then_continue", "stop", "raise", "ignore"]
    steps += [{"op": "gs_start", "id": server, "init": rng.choice(inits)} for server in "gh"]
    for _ in range(rng.randrange(5, 25)):
        server = rng.choice("gh")
        ops = ["call"] * 4 + ["cast", "cast", "info", "seen", "get_state", "suspend", "resume"]
        op = rng.choice([*ops, "alive", "gs_stop"] if rng.random() < 0.3 else ops)
        if op == "call":
            deadly = ["crash", "error", "stop", "stop_reply", "reply_then_crash", "self_call"]
            harmless = [{"reply": next(numbers)}, {"reply": "v"}, "continue", "hibernate"]
            waits = server in suspended or rng.random() < 0.05
            req = rng.choice(deadly) if rng.random() < 0.2 else rng.choice(harmless)
            call = {"op": op, "by": "c", "to": server, "req": "noreply" if waits else req}
            steps.append({**call, "timeout": 15 if waits else 5000})
        elif op in ("cast", "info"):
            req = rng.choice([next(numbers), "x", "y", "crash" if rng.random() < 0.2 else "z"])
            steps.append({"op": op, "to": server, "req": req})
        elif op == "seen" and server in suspended:
            steps.append({"op": "get_state", "id": server})
        elif op == "gs_stop":
            reason = rng.choice(["normal", "shutdown", "boom"])
            steps.append({"op": op, "id": server, "reason": reason})
        else:
            suspended ^= {server} if op == "suspend" and server not in suspended else set()
            suspended -= {server} if op == "resume" else set()
            steps.append({"op": op, "id": server})
    steps += [{"op": "alive", "id": i} for i in "cgh"]
    return {"family": "genserver", "steps": steps}


class Term:
    """A recorded term that stands for itself, in the form of the traces."""

    def __init__(self, form: Any) -> None:
        self.form = form

    def __str__(self) -> str:
        return erlang_term(self.form)


def erlang_term(form: Any) -> str:
    """A recorded term in Erlang."""
    if isinstance(form, dict):
        (kind, value) = next(iter(form.items()))
        inner = ",".join(map(erlang_term, value)) if kind == "t" else ""
        return f"{{{inner}}}" if kind == "t" else f"'{value}'"
    if isinstance(form, list):
        return f"[{','.join(map(erlang_term, form))}]"
    if isinstance(form, bool):
        return "true" if form else "false"
    return f'<<"{form}">>' if isinstance(form, str) else repr(form)


def atom(word: str) -> dict[str, Any]:
    return {"a": word}


def row(*items: Any) -> dict[str, Any]:
    return {"t": list(items)}


def tables(seed: int) -> dict[str, Any]:
    """A scenario of one named table of a random type."""
    rng = random.Random(seed)
    kind = rng.choice(["set", "ordered_set", "bag", "duplicate_bag"])
    ordered = kind == "ordered_set"
    keys = [1, 2, 3, 1.0, 2.5, "k", "l", atom("w"), row(1, "k")]
    values = [1, 2, 5, -3, 1.0, "x", "y", atom("v")]

    def key() -> Any:
        return rng.choice(keys)

    def some_row() -> Any:
        return row(key(), *rng.choices(values, k=rng.choice([1, 1, 1, 2])))

    def rows() -> Any:
        bad = ["no row"] if rng.random() < 0.1 else []
        return [*(some_row() for _ in range(rng.randrange(4))), *bad]

    def pattern() -> Any:
        parts = [atom("_"), atom("$1"), atom("$2"), *keys[:4], *values[:3]]
        return row(*rng.choices(parts, k=rng.choice([2, 2, 3])))

    def spec() -> Any:
        bound = [row(atom(op), atom("$1"), rng.choice([1, 2.0, "k"])) for op in (">", "=<", "=:=")]
        guards = rng.choice([[], [rng.choice(bound)], rng.sample(bound, 2)])
        body = rng.choice([atom("$_"), True, atom("$1"), row(row(atom("$2"), atom("$1"))), False])
        return [row(row(atom("$1"), atom("$2")), guards, [body])]

    def call() -> tuple[str, list[Any]]:
        position = rng.choice([1, 2, 2, 3])
        choices: list[tuple[str, list[Any]]] = [
            *[("insert", [some_row()])] * 4,
            *[("insert", [rows()])] * 2,
            ("insert_new", [some_row()]),
            ("insert_new", [rows()]),
            ("lookup", [key()]),
            ("member", [key()]),
            ("take", [key()]),
            ("delete", [key()]),
            ("delete_object", [some_row()]),
            ("lookup_element", [key(), position]),
            ("update_counter", [key(), rng.choice([1, -2, row(2, 3), row(2, 10, 5, 0)])]),
            ("update_counter", [key(), 1, row("k", 7)]),
            ("update_element", [key(), row(position, rng.choice(values))]),
            ("match_object", [pattern()]),
            ("match", [pattern()]),
            ("match_delete", [pattern()]),
            ("select", [spec()]),
            ("select_count", [spec()]),
            ("select_delete", [spec()]),
            ("tab2list", []),
            ("info", [atom(rng.choice(["size", "type", "keypos", "protection"]))]),
        ]
        if ordered:
            choices += [("first", []), ("last", []), ("next", [key()]), ("prev", [key()])]
        return rng.choice(choices)

    named = [atom(kind), atom("named_table"), atom("public")]
    steps = [{"op": "spawn", "id": "p", "trap": False}]
    calls = [("new", [named]), *(call() for _ in range(rng.randrange(5, 30))), ("tab2list", [])]
    for name, args in calls:
        step = {"op": "mf", "mod": "ets", "fn": name, "by": "p", "args": Term([atom("t"), *args])}
        steps.append(step if ordered else {**step, "sort": True})
    return {"family": "ets", "steps": steps}


def erlang(term: Any) -> str:
    """A JSON value as an Erlang term; strings are atoms."""
    if isinstance(term, Term):
        return str(term)
    if isinstance(term, bool):
        return "true" if term else "false"
    if isinstance(term, str):
        return f"'{term}'"
    if isinstance(term, list):
        return f"[{','.join(map(erlang, term))}]"
    if isinstance(term, dict):
        return f"#{{{','.join(f'{erlang(k)} => {erlang(v)}' for k, v in term.items())}}}"
    return repr(term)


def record(scenarios: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Play scenarios on OTP; their traces."""
    source = folder / "scenarios.terms"
    source.write_text("".join(f"{erlang(s)}.\n" for s in scenarios), "utf-8")
    subprocess.run(["erlc", "-o", str(folder), str(RECORDER)], check=True, timeout=60)
    done = subprocess.run(
        [
            *("erl", "+S", "1:1", "-noinput", "-noshell", "-pa", str(folder)),
            *("-run", "otp_recorder", "main", str(source)),
        ],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
        # What fails is shown by its output; a dump would be left where the tests were started.
        env={**os.environ, "ERL_CRASH_DUMP_BYTES": "0"},
    )
    traces = [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]
    assert len(traces) == len(scenarios), done.stdout[-2000:] + done.stderr[-2000:]
    return traces


def line(seed: int, scenario: dict[str, Any], trace: dict[str, Any]) -> dict[str, Any]:
    """A line of a trace file, without the steps that came after the root's end or had no target."""
    steps = [
        {**s, "args": s["args"].form} if isinstance(s.get("args"), Term) else s
        for s in scenario["steps"]
    ]
    family = scenario.get("family", "supervision")
    if family == "genserver":
        steps = [{k: v for k, v in s.items() if (k, v) != ("init", "none")} for s in steps]
    pairs = list(zip(steps, trace["steps"], strict=False))
    pairs = [(s, t) for s, t in pairs if t["result"] != "untouched"]
    return {
        "v": 1,
        "id": f"random-{seed}",
        "family": family,
        "title": "",
        "rules": [],
        "timing": False,
        "scenario": {
            **({"supervisor": scenario["supervisor"]} if family == "supervision" else {}),
            "steps": [s for s, _ in pairs],
        },
        "trace": {**trace, "steps": [t for _, t in pairs]},
        "meta": {},
    }


def disagreements(scenarios: list[dict[str, Any]], folder: Path) -> tuple[list[Any], list[str]]:
    """Play scenarios on both; the lines recorded on OTP, and what keepwell did otherwise."""
    traces = record(scenarios, folder)
    lines = [line(*item) for item in zip(itertools.count(), scenarios, traces, strict=False)]
    failed = []
    for played in lines:
        found = replay.replay(played, "simulated")
        if found:
            failed += [played["id"], json.dumps(played["scenario"]), *found]
    return lines, failed


def test_random_trees_agree(tmp_path: Path) -> None:
    seeds = range(SEED * 100_000, SEED * 100_000 + COUNT)
    lines, failed = disagreements([Author(seed).scenario() for seed in seeds], tmp_path)
    assert failed == [], "\n".join(failed[:60])
    # They are worth something: most go on for some steps, and many restart somebody.
    assert sum(len(played["trace"]["steps"]) for played in lines) > 3 * COUNT
    assert sum('"n": 2' in json.dumps(played["trace"]) for played in lines) > COUNT / 4


def test_random_processes_agree(tmp_path: Path) -> None:
    seeds = range(SEED * 100_000, SEED * 100_000 + COUNT)
    lines, failed = disagreements([processes(seed) for seed in seeds], tmp_path)
    assert failed == [], "\n".join(failed[:60])
    assert sum(len(played["trace"]["steps"]) for played in lines) > 10 * COUNT
    assert sum('"EXIT"' in json.dumps(played["trace"]) for played in lines) > COUNT / 10


def test_random_tables_agree(tmp_path: Path) -> None:
    seeds = range(SEED * 100_000, SEED * 100_000 + COUNT)
    lines, failed = disagreements([tables(seed) for seed in seeds], tmp_path)
    assert failed == [], "\n".join(failed[:60])
    assert sum(len(played["trace"]["steps"]) for played in lines) > 8 * COUNT
    assert sum('"raise"' in json.dumps(played["trace"]) for played in lines) > COUNT / 4


def test_random_servers_agree(tmp_path: Path) -> None:
    seeds = range(SEED * 100_000, SEED * 100_000 + COUNT)
    lines, failed = disagreements([servers(seed) for seed in seeds], tmp_path)
    assert failed == [], "\n".join(failed[:60])
    assert sum(len(played["trace"]["steps"]) for played in lines) > 8 * COUNT
    assert sum("caller_raises" in json.dumps(played["trace"]) for played in lines) > COUNT / 4
