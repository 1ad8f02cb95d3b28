"""The replay of table scenarios: what it makes of further ones, and what it refuses.

The scenarios here were not recorded. Their results are those that OTP documents for ets, dets and
match specifications.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import replay
from test_replay import by_id


def a(word: str) -> dict[str, Any]:
    return {"a": word}


def t(*items: Any) -> dict[str, Any]:
    return {"t": list(items)}


def p(actor: str) -> dict[str, Any]:
    return {"p": actor}


T = {"v": "t"}
DISK = a("disk")
OK = a("ok")
BADARG = {"raise": a("badarg")}
END = a("$end_of_table")
UNDEFINED = a("undefined")
FILE = t(a("file"), {"s": "$TMP/t.dets"})


def spawn(*actors: str) -> list[Any]:
    return [({"op": "spawn", "id": actor, "trap": False}, OK) for actor in actors]


def leave(actor: str, reason: str = "boom") -> Any:
    step = {"op": "exit", "id": actor, "reason": reason, "how": "exit"}
    return (step, {"exited": a(reason)})


def call(name: str, *args: Any, by: str = "p", gives: Any = True, **fields: Any) -> Any:
    mod, fn = name.split(":")
    step = {"op": "mf", "mod": mod, "fn": fn, "by": by, "args": list(args)}
    if "keep" in fields:
        step["as"] = fields.pop("keep")
    return ({**step, **fields}, gives)


def new(*options: Any, gives: Any = T, **fields: Any) -> Any:
    return call("ets:new", a("t"), list(options), gives=gives, keep="t", **fields)


def open_disk(*options: Any, gives: Any = None, **fields: Any) -> Any:
    gives = t(OK, DISK) if gives is None else gives
    return call("dets:open_file", DISK, [FILE, *options], gives=gives, **fields)


def line(family: str, *steps: Any) -> dict[str, Any]:
    return {
        "v": 1, "id": f"{family}-X", "family": family, "title": "x", "rules": [], "timing": False,
        "scenario": {"steps": [step for step, _ in steps]},
        "trace": {"steps": [{"op": step["op"], "result": result} for step, result in steps]},
        "meta": {"otp": "25.2.3", "runs": 0},
    }  # fmt: skip


def select(spec: list[Any], gives: Any, **fields: Any) -> Any:
    return call("ets:select", T, spec, gives=gives, **fields)


SCENARIOS = {
    "duplicate_bag keeps equal rows in order": line(
        "ets", *spawn("p"), new(a("duplicate_bag")),
        call("ets:insert", T, [t(1, "a"), t(1, "b"), t(1, "a")]),
        call("ets:lookup", T, 1, gives=[t(1, "a"), t(1, "b"), t(1, "a")]),
        call("ets:info", T, a("size"), gives=3),
        call("ets:delete_object", T, t(1, "a")),
        call("ets:lookup", T, 1, gives=[t(1, "b")]),
    ),
    "keys of mixed types sort": line(
        "ets", *spawn("p"), new(a("ordered_set")),
        call("ets:insert", T, [t("s"), t([1]), t(t(1, 2)), t(p("p")), t(a("x")), t(True), t(2.5)]),
        call("ets:insert", T, [t([]), t(t(3)), t(a("a")), t(3), t(False), t(2), t(UNDEFINED)]),
        call("ets:tab2list", T, gives=[
            t(2), t(2.5), t(3), t(a("a")), t(False), t(True), t(UNDEFINED), t(a("x")), t(p("p")),
            t(t(3)), t(t(1, 2)), t([]), t([1]), t("s"),
        ]),
        call("ets:next", T, 2.75, gives=3), call("ets:prev", T, 2, gives=END),
    ),
    "1, 1.0 and true are three keys of a set": line(
        "ets", *spawn("p"), new(a("set")),
        call("ets:insert", T, [t(1, "i"), t(1.0, "f"), t(True, "b")]),
        call("ets:lookup", T, 1, gives=[t(1, "i")]),
        call("ets:lookup", T, 1.0, gives=[t(1.0, "f")]),
        call("ets:lookup", T, True, gives=[t(True, "b")]), call("ets:info", T, a("size"), gives=3),
        call("ets:match_object", T, t(1, a("_")), gives=[t(1, "i")]),
    ),
    "private: owner only": line(
        "ets", *spawn("p", "q"), new(a("private")), call("ets:insert", T, t(1, "a")),
        call("ets:lookup", T, 1, by="q", gives=BADARG),
        call("ets:insert", T, t(1, "b"), by="q", gives=BADARG),
        call("ets:delete", T, by="q", gives=BADARG),
        call("ets:info", T, a("protection"), by="q", gives=a("private")),
        call("ets:lookup", T, 1, gives=[t(1, "a")]),
    ),
    "protected: others read": line(
        "ets", *spawn("p", "q"), new(), call("ets:insert", T, t(1, 5)),
        call("ets:lookup", T, 1, by="q", gives=[t(1, 5)]),
        call("ets:update_counter", T, 1, 1, by="q", gives=BADARG),
        call("ets:delete", T, 1, by="q", gives=BADARG),
        call("ets:delete", T, by="q", gives=BADARG), call("ets:info", T, a("size"), gives=1),
    ),
    "a dead heir: deleted": line(
        "ets", *spawn("p", "h"), new(t(a("heir"), p("h"), "d")), leave("h"), leave("p"),
        *spawn("q"), call("ets:info", T, by="q", gives=UNDEFINED),
    ),
    "no heir": line(
        "ets", *spawn("p", "h"), new(t(a("heir"), p("h"), "d")),
        call("ets:setopts", T, [t(a("heir"), a("none"))]),
        call("ets:info", T, a("heir"), gives=a("none")), leave("p"),
        ({"op": "inbox", "id": "h"}, []), call("ets:info", T, by="h", gives=UNDEFINED),
    ),
    "an heir of a named table": line(
        "ets", *spawn("p", "h"),
        call("ets:new", a("n"), [a("named_table"), t(a("heir"), p("h"), "d")], gives=a("n")),
        leave("p", "normal"),
        ({"op": "inbox", "id": "h"}, [t(a("ETS-TRANSFER"), a("n"), p("p"), "d")]),
        call("ets:insert", a("n"), t(1, 2), by="h"),
        call("ets:info", a("n"), a("owner"), by="h", gives=p("h")),
    ),
    "give_away refuses": line(
        "ets", *spawn("p", "q", "d"), new(), leave("d"),
        call("ets:give_away", T, p("p"), "x", gives=BADARG),
        call("ets:give_away", T, p("q"), "x", by="q", gives=BADARG),
        call("ets:give_away", T, p("d"), "x", gives=BADARG),
        call("ets:info", T, a("owner"), gives=p("p")),
    ),
    "setopts refuses": line(
        "ets", *spawn("p", "q"), new(), call("ets:setopts", T, a("public"), gives=BADARG),
        call("ets:setopts", T, t(a("heir"), p("q"), "x"), by="q", gives=BADARG),
        call("ets:setopts", T, t(a("heir"), "q", "x"), gives=BADARG),
    ),
    "nothing found in chunks": line(
        "ets", *spawn("p"), new(), call("ets:insert", T, t(1, 1)),
        call("ets:match", T, t(9, a("_")), 5, gives=END),
        call("ets:match", T, t(a("$1"), a("_")), 5, gives=t([[1]], END)),
        call("ets:select", END, gives=END), call("ets:select", 5, gives=BADARG),
        call("ets:match_object", T, a("_"), 0, gives=BADARG),
    ),
    "bodies and guards": line(
        "ets", *spawn("p"), new(a("ordered_set")),
        call("ets:insert", T, [t(1, t(a("x"), 10)), t(2, t(a("y"), 20)), t(3, "no tuple")]),
        select([t(t(a("$1"), a("$2")), [t(a("is_tuple"), a("$2"))],
                  [t(t(a("$1"), t(a("element"), 2, a("$2"))))])], [t(1, 10), t(2, 20)]),
        select([t(t(a("$1"), a("$2")), [], [t(a("element"), 2, a("$2"))])], [10, 20, a("EXIT")]),
        select([t(t(a("$1"), a("_")), [t(a("orelse"), t(a("=:="), a("$1"), 1.0),
                                         t(a("=="), a("$1"), 2.0))], [a("$_")])],
               [t(2, t(a("y"), 20))]),
        select([t(t(a("$1"), t(a("$2"), a("_"))), [t(a("=="), a("$2"), a("y"))], [a("$$")])],
               [[2, a("y")]]),
        select([t(t(a("$1"), a("_")), [t(a("nosuch"), 1)], [True])], BADARG),
        select([t(t(a("$1"), a("_")), [], [a("$2")])], BADARG),
        select([t(a("_"), [], [t(a("const"), t(a("a"), 1))])], [t(a("a"), 1)] * 3),
        call("ets:select_count", T, [t(a("_"), [], [a("true_not")])], gives=0),
    ),
    "update_counter in all forms": line(
        "ets", *spawn("p"), new(t(a("keypos"), 2)), call("ets:insert", T, t(1, "k", 5)),
        call("ets:update_counter", T, "k", 1, gives=6),
        call("ets:update_counter", T, "k", [t(1, 1), t(3, -1)], gives=[2, 5]),
        call("ets:update_counter", T, "k", t(2, 1), gives=BADARG),
        call("ets:update_counter", T, "k", t(4, 1), gives=BADARG),
        call("ets:update_counter", T, "k", 1.0, gives=BADARG),
        call("ets:update_counter", T, "n", [], t(0, 0, 0), gives=[]),
        call("ets:lookup", T, "n", gives=[t(0, "n", 0)]),
        call("ets:update_element", T, "n", [t(1, "x"), t(3, [])]),
        call("ets:lookup_element", T, "n", 3, gives=[]),
        call("ets:lookup_element", T, "n", 0, gives=BADARG),
    ),
    "options": line(
        "ets", *spawn("p"),
        new(a("bag"), a("compressed"), t(a("write_concurrency"), True), a("public"),
            t(a("read_concurrency"), True), t(a("decentralized_counters"), False)),
        call("ets:info", T, a("type"), gives=a("bag")),
        call("ets:new", a("u"), [t(a("keypos"), "2")], gives=BADARG),
        call("ets:new", a("u"), [t(a("colour"), a("red"))], gives=BADARG),
        call("ets:new", a("u"), [t(a("write_concurrency"), 3)], gives=BADARG),
        call("ets:new", a("u"), a("set"), gives=BADARG),
        call("ets:safe_fixtable", T, a("maybe"), gives=BADARG),
        call("ets:lookup", a("nosuch"), 1, gives=BADARG),
        call("ets:info", a("nosuch"), gives=UNDEFINED),
        call("ets:whereis", "text", gives=BADARG),
    ),
    "the file fixes type and keypos": line(
        "dets", *spawn("p"), open_disk(t(a("type"), a("bag"))), call("dets:close", DISK, gives=OK),
        open_disk(gives=t(a("error"), t(a("type_mismatch"), "$TMP/t.dets"))),
        open_disk(t(a("type"), a("bag")), t(a("keypos"), 2),
                  gives=t(a("error"), t(a("keypos_mismatch"), "$TMP/t.dets"))),
        open_disk(t(a("type"), a("sett")), gives=BADARG),
        open_disk(t(a("colour"), 1), gives=BADARG),
        open_disk(t(a("type"), a("bag"))),
    ),
    "openers share": line(
        "dets", *spawn("p", "q"), open_disk(), open_disk(by="q"),
        call("dets:insert", DISK, t(1, "a"), gives=OK),
        call("dets:lookup", DISK, 1, by="q", gives=[t(1, "a")]),
        call("dets:close", DISK, gives=OK),
        call("dets:close", DISK, gives=t(a("error"), a("not_owner"))),
        call("dets:lookup", DISK, 1, gives=[t(1, "a")]), leave("q"),
        call("dets:lookup", DISK, 1, gives=BADARG), call("dets:info", DISK, gives=UNDEFINED),
    ),
    "dets calls": line(
        "dets", *spawn("p"), open_disk(t(a("type"), a("duplicate_bag"))),
        call("dets:insert", DISK, [t(1, a("w")), "x"], gives=BADARG),
        call("dets:insert", DISK, [t(1, a("w")), t(1, a("w")), t(2, "x")], gives=OK),
        call("dets:lookup", DISK, 1, gives=[t(1, a("w")), t(1, a("w"))]),
        call("dets:match", DISK, t(a("$1"), "x"), gives=[[2]]),
        call("dets:match_object", DISK, t(2, a("_")), 10, gives=t([t(2, "x")], END)),
        call("dets:delete_object", DISK, t(1, a("w")), gives=OK),
        call("dets:select_delete", DISK, [t(t(2, a("_")), [], [True])], gives=1),
        call("dets:first", DISK, gives=END), call("dets:next", DISK, 5, gives=BADARG),
        call("dets:safe_fixtable", DISK, True, gives=OK),
        call("dets:info", DISK, a("filename"), gives="$TMP/t.dets"),
        call("dets:update_counter", DISK, 1, 1, gives=BADARG),
        call("dets:is_dets_file", {"s": "$TMP/t.dets"}, gives=True),
    ),
}  # fmt: skip

MODES = ["simulated", "real"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_documented_behaviour(scenario: dict[str, Any], mode: str) -> None:
    assert replay.replay(scenario, mode) == []


def changed(scenario: str, index: int, **fields: Any) -> dict[str, Any]:
    scenario_line = by_id(scenario)
    scenario_line["scenario"]["steps"][index] |= fields
    return scenario_line


UNKNOWN = {
    "function": changed("ets-E01", 2, fn="inject"),
    "arity": changed("ets-E01", 4, args=[{"v": "t"}, 1, 2]),
    "module": changed("ets-E01", 2, mod="mnesia"),
    "caller": changed("ets-E01", 2, by="nobody"),
    "field": changed("ets-E01", 2, timeout=5),
    "op": changed("ets-E01", 2, op="mfa"),
    "term": changed("ets-E01", 2, args=[{"v": "t"}, {"z": 1}]),
    "null": changed("ets-E01", 2, args=[{"v": "t"}, None]),
    "kept": changed("ets-E01", 2, args=[{"v": "nothing"}, {"t": [1]}]),
    "path": changed("dets-B11", 1, path="/etc/passwd"),
    "path upwards": changed("dets-B11", 1, path="$TMP/../x"),
    "private method": changed("ets-E01", 2, fn="_init__"),
}


@pytest.mark.parametrize("scenario", UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_unknown_fails(scenario: dict[str, Any]) -> None:
    assert replay.replay(scenario, "simulated")


RESULTS = [
    ("ets-E01", 4, [t(1, "a")]), ("ets-E01", 6, 1.0), ("ets-E01", 6, True), ("ets-E01", 3, 1),
    ("ets-E01", 1, OK), ("ets-E02", 5, [t(1, "b"), t(1, "a")]), ("ets-E04", 5, 1),
    ("ets-E04", 6, [t(1, "f"), t(2, "b"), t(3, "c")]), ("ets-E04", 7, 1), ("ets-E06", 3, True),
    ("ets-E12", 4, UNDEFINED), ("ets-E20", 6, p("p")), ("ets-E20", 5, []), ("ets-E26", 3, ["x"]),
    ("dets-B01", 1, OK), ("dets-B07", 5, []), ("dets-B12", 1, t(a("error"), a("enoent"))),
]  # fmt: skip


@pytest.mark.parametrize(("scenario", "index", "result"), RESULTS, ids=repr)
def test_another_result_fails(scenario: str, index: int, result: Any) -> None:
    """Strictly: 1, 1.0 and true differ."""
    other = copy.deepcopy(by_id(scenario))
    other["trace"]["steps"][index]["result"] = result
    assert json.dumps(other) != json.dumps(by_id(scenario))
    assert replay.replay(other, "simulated")
