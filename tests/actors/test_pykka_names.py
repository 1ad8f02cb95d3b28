"""What keepwell takes from inside pykka: if a release changes it, it fails here and by name."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pykka
import pytest
from pykka import _actor, _envelope, _ref, _registry, messages

import keepwell

# Name of the thing, and the names in its parameters in order (None: not a function).
PINNED: dict[str, tuple[Any, list[str] | None]] = {
    "Actor._create_actor_inbox": (_actor.Actor._create_actor_inbox, []),
    "Actor._create_future": (_actor.Actor._create_future, []),
    "Actor._start_actor_loop": (_actor.Actor._start_actor_loop, ["self"]),
    "Actor._actor_loop": (_actor.Actor._actor_loop, ["self"]),
    "Actor._actor_loop_setup": (_actor.Actor._actor_loop_setup, ["self"]),
    "Actor._actor_loop_running": (_actor.Actor._actor_loop_running, ["self"]),
    "Actor._actor_loop_teardown": (_actor.Actor._actor_loop_teardown, ["self"]),
    "Actor._handle_receive": (_actor.Actor._handle_receive, ["self", "message"]),
    "Actor._handle_failure": (
        _actor.Actor._handle_failure, ["self", "exception_type", "exception_value", "traceback"],
    ),
    "Actor._stop": (_actor.Actor._stop, ["self"]),
    "Envelope": (_envelope.Envelope, ["message", "reply_to"]),
    "messages._ActorStop": (messages._ActorStop, []),
    "messages.ProxyCall": (messages.ProxyCall, ["attr_path", "args", "kwargs"]),
    "messages.ProxyGetAttr": (messages.ProxyGetAttr, ["attr_path"]),
    "messages.ProxySetAttr": (messages.ProxySetAttr, ["attr_path", "value"]),
}  # fmt: skip


@pytest.mark.parametrize("name", PINNED)
def test_is_there_with_these_parameters(name: str) -> None:
    thing, parameters = PINNED[name]
    assert list(inspect.signature(thing).parameters) == parameters


def test_the_registry_keeps_its_refs_behind_one_name() -> None:
    source = inspect.getsource(_registry.ActorRegistry)
    # All that it does with the list, which `registry.RegisteredRefs` must be able to do.
    used = set(re.findall(r"_actor_refs(?!_lock)(\[:\]|\.\w+|)", source))
    assert used == {"[:]", ".append", ".remove", ""}
    assert set(re.findall(r"in cls\._actor_refs\b", source)) == {"in cls._actor_refs"}
    assert "_actor_refs_lock" in source


def test_an_actor_keeps_its_ref_and_a_ref_its_actor_weakly() -> None:
    class Plain(pykka.ThreadingActor): ...

    actor = Plain()
    assert actor._actor_ref is actor.actor_ref
    assert actor.actor_ref._actor_weakref() is actor
    assert "_actor_weakref" in inspect.getsource(pykka.ActorProxy)


def test_a_ref_asks_by_envelope_and_its_actor_class_makes_the_future() -> None:
    source = inspect.getsource(_ref.ActorRef.ask)
    assert "self.actor_class._create_future()" in source
    assert "Envelope(message, reply_to=future)" in source


def test_no_other_private_name_of_pykka_is_used() -> None:
    known = {name.rsplit(".", 1)[-1] for name in PINNED} | {
        "_actor_ref", "_actor_refs", "_actor_refs_lock", "_actor_weakref", "_envelope",
    }  # fmt: skip
    imported: set[str] = set()
    root = Path(keepwell.__file__).parents[1]
    for file in [*(root / "actors").glob("*.py"), *(root / "supervision").glob("*.py")]:
        for line in re.findall(r"^from pykka\S* import .*$", file.read_text(), re.MULTILINE):
            imported |= set(re.findall(r"\b_\w+", line))
        imported |= set(re.findall(r"\bpykka\.(?:\w+\.)*(_\w+)", file.read_text()))
    assert imported <= known, imported - known
