"""Replays the ets and dets families: table calls, made by actors.

    python tests/otp/replay_tables.py FILE...

Everything that a table does is done by the product; here its calls are named, positions are counted
from 0 instead of 1, and results are put into OTP's shapes. Words in rows are `Atom`s, since they
sort as atoms and are no strings.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parents[1]):  # the modules beside this one, and keepwell in a checkout
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

from replay_actors import ActorScenario
from replay_compare import BadTrace

from keepwell.actors import TableTransfer
from keepwell.stores.disk_table import DiskTable
from keepwell.stores.match_spec import ANY, BINDINGS, ROW, Var
from keepwell.stores.memory_table import MemoryTable
from keepwell.stores.table import Continuation, Table
from keepwell.stores.table_errors import TableError, TableFileError
from keepwell.stores.table_rows import END_OF_TABLE
from keepwell.stores.term_order import Atom

if TYPE_CHECKING:
    from replay_stage import Stage

WORDS = {
    "_": ANY,
    "$_": ROW,
    "$$": BINDINGS,
    "$end_of_table": END_OF_TABLE,
    "undefined": None,
    "true": True,
    "false": False,
}
PRINTED = {id(ANY): "_", id(ROW): "$_", id(BINDINGS): "$$", id(END_OF_TABLE): "$end_of_table"}
OPAQUE = {"ref": True}

PROTECTIONS = ("private", "protected", "public")
# They tune a table and change nothing that it does.
ETS_TUNING = ("write_concurrency", "read_concurrency", "decentralized_counters")
DETS_TUNING = (
    "auto_save", "ram_file", "repair", "estimated_no_objects", "min_no_slots", "max_no_slots",
    "version", "cache_size", "delayed_write",
)  # fmt: skip


class Name(str):
    """The result `Name` of a call."""

    __slots__ = ()


class TableScenario(ActorScenario):
    """Plays scenarios of tables. A step `mf` calls a function of the module `ets` or `dets`."""

    def __init__(self, line: Mapping[str, Any], stage: Stage) -> None:
        super().__init__(line, stage)
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="replay-"))
        self.disks: dict[str, DiskTable] = {}

    def run(self) -> dict[str, Any]:
        try:
            return super().run()
        finally:
            for ref in self.refs.values():
                ref.kill()
                self.stage.end_of(ref)
            shutil.rmtree(self.folder)

    # -- terms -----------------------------------------------------------------------------------

    def decode(self, term: Any) -> Any:
        if isinstance(term, dict) and set(term) == {"s"}:
            return self.path(term["s"])
        if term is None:
            raise BadTrace("null is no term")
        return super().decode(term)

    def decode_word(self, word: str) -> Any:
        if word in WORDS:
            return WORDS[word]
        if word.startswith("$") and word[1:].isdigit():
            return Var(int(word[1:]))
        return Atom(word)

    def encode(self, value: Any) -> Any:
        if id(value) in PRINTED:
            return PRINTED[id(value)]
        if isinstance(value, Name):
            return str(value)
        if isinstance(value, str):
            return value.replace(self.folder, "$TMP")
        if isinstance(value, Var):
            return f"${value.number}"
        if isinstance(value, bytes) or (isinstance(value, dict) and set(value) != {"exited"}):
            raise BadTrace(f"{value!r} has no form in a trace")
        return super().encode(value)

    def encode_object(self, value: Any) -> Any:
        if isinstance(value, MemoryTable):
            # A table that is gone has no facts left, but its name.
            named = value.info("named_table")
            return value.name if named else OPAQUE
        if isinstance(value, DiskTable):
            return value.name
        if isinstance(value, (Continuation, Opaque)):
            return OPAQUE
        if isinstance(value, TableTransfer):
            return self.encode(("ETS-TRANSFER", value.table, value.old_owner, value.data))
        if isinstance(value, Raised):
            return {"raise": value.word}
        return super().encode_object(value)

    def path(self, text: str) -> str:
        if not isinstance(text, str) or not text.startswith("$TMP/") or ".." in text:
            raise BadTrace(f"a path begins with $TMP/, not {text!r}")
        return self.folder + text.removeprefix("$TMP")

    # -- steps -----------------------------------------------------------------------------------

    def op_copyfile(self, from_: str, to: str) -> str:
        shutil.copyfile(self.path(from_), self.path(to))
        return "ok"

    def op_truncate(self, file: str, cut: int) -> str:
        path = self.path(file)
        os.truncate(path, os.path.getsize(path) - cut)
        return "ok"

    def op_writefile(self, path: str, text: str) -> str:
        Path(self.path(path)).write_text(text, "utf-8")
        return "ok"

    def op_mf(self, mod: str, fn: str, by: str, args: list[Any], as_: str | None = None) -> Any:
        module = {"ets": Ets, "dets": Dets}.get(mod)
        if module is None:
            raise BadTrace(f"unknown module {mod!r}")
        function = getattr(module, f"f_{fn}_{len(args)}", None)
        if function is None:
            raise BadTrace(f"unknown function {mod}:{fn}/{len(args)}")
        calls = module(self, args)
        try:
            result = self.as_actor(by, lambda _: function(calls))
        except TableError as error:
            if error.code == "badarg":
                return Raised("badarg")
            detail = error.code if error.code == "not_owner" else (error.code, error.path)
            return ("error", detail)
        except TableFileError as error:
            if error.code == "incompatible_arguments":
                return ("error", error.code)
            reason = () if error.reason is None else (error.reason,)
            return ("error", (error.code, error.path, *reason))
        if as_ is not None:
            self.kept[as_] = result
        if isinstance(result, MemoryTable) and result.info("named_table"):
            return Name(result.name)
        return result


class Raised:
    """The call raised."""

    def __init__(self, word: str) -> None:
        self.word = word


def refused(problem: str) -> TableError:
    """What OTP refuses before it comes to a table."""
    return TableError("-", problem)


class Calls:
    """The functions that ets and dets share. A method `f_name_arity` runs as the calling actor."""

    done: Any
    """What a function that has no result returns."""

    def __init__(self, scenario: TableScenario, args: list[Any]) -> None:
        self.scenario = scenario
        self.raw = args
        self.args = [scenario.decode(arg) for arg in args]

    @property
    def table(self) -> Any:
        return self.find(self.args[0])

    def find(self, handle: Any) -> Table:
        raise NotImplementedError

    def f_insert_2(self) -> Any:
        self.table.insert(self.args[1])
        return self.done

    def f_insert_new_2(self) -> Any:
        return self.table.insert_new(self.args[1])

    def f_delete_2(self) -> Any:
        self.table.delete(self.args[1])
        return self.done

    def f_delete_object_2(self) -> Any:
        self.table.delete_object(self.args[1])
        return self.done

    def f_delete_all_objects_1(self) -> Any:
        self.table.delete_all_objects()
        return self.done

    def f_match_delete_2(self) -> Any:
        self.table.match_delete(self.args[1])
        return self.done

    def f_member_2(self) -> Any:
        return self.table.member(self.args[1])

    def f_lookup_2(self) -> Any:
        return self.table.lookup(self.args[1])

    def f_update_counter_3(self) -> Any:
        return self.table.update_counter(self.args[1], from_zero(self.args[2]))

    def f_match_1(self) -> Any:
        return self.go_on("match")

    def f_match_2(self) -> Any:
        return self.table.match(self.args[1])

    def f_match_3(self) -> Any:
        return chunk(self.table.match(self.args[1], self.args[2]))

    def f_match_object_1(self) -> Any:
        return self.go_on("match_object")

    def f_match_object_2(self) -> Any:
        return self.table.match_object(self.args[1])

    def f_match_object_3(self) -> Any:
        return chunk(self.table.match_object(self.args[1], self.args[2]))

    def f_select_1(self) -> Any:
        return self.go_on("select")

    def f_select_2(self) -> Any:
        return self.table.select(spec_from_zero(self.args[1]))

    def f_select_3(self) -> Any:
        return chunk(self.table.select(spec_from_zero(self.args[1]), self.args[2]))

    def f_select_delete_2(self) -> Any:
        return self.table.select_delete(spec_from_zero(self.args[1]))

    def go_on(self, call: str) -> Any:
        given = self.args[0]
        if given is END_OF_TABLE:
            return END_OF_TABLE
        if not isinstance(given, Continuation):
            raise refused(f"{given!r} is no continuation")
        return chunk(getattr(given.table, call)(given))

    def f_first_1(self) -> Any:
        return self.table.first()

    def f_next_2(self) -> Any:
        return self.table.next(self.args[1])

    def f_safe_fixtable_2(self) -> Any:
        if self.args[1] is True:
            self.table.fix()
        elif self.args[1] is False:
            self.table.unfix()
        else:
            raise refused("true or false")
        return self.done

    def f_info_1(self) -> Any:
        facts = self.table.info()
        return None if facts is None else [self.fact(*fact) for fact in facts.items()]

    def f_info_2(self) -> Any:
        item = self.item(self.args[1])
        return self.fact(item, self.table.info(item))[1]

    def item(self, word: Any) -> Any:
        return str(word) if isinstance(word, str) else word

    def fact(self, item: str, value: Any) -> tuple[str, Any]:
        return item, value + 1 if item == "keypos" and value is not None else value


class Ets(Calls):
    """ets is MemoryTable."""

    done = True

    def find(self, handle: Any) -> Table:
        if isinstance(handle, MemoryTable):
            return handle
        table = MemoryTable.whereis(str(handle)) if isinstance(handle, Atom) else None
        if table is None:
            table = MemoryTable("none", protection="public")
            table.drop()
        return table

    def f_new_2(self) -> Any:
        options = self.args[1]
        if not isinstance(options, list):
            raise refused("options are a list")
        settings: dict[str, Any] = {}
        for option in options:
            settings |= self.setting(option)
        return MemoryTable(self.name(0), **settings)

    def name(self, index: int) -> Any:
        """A table's name. A plain string is no atom and no str of keepwell's, hence bytes."""
        name = self.args[index]
        if isinstance(name, Atom):
            return str(name)
        return name.encode() if isinstance(name, str) else name

    def setting(self, option: Any) -> dict[str, Any]:
        if isinstance(option, str) and option in PROTECTIONS:
            return {"protection": option}
        if option == "named_table":
            return {"named": True}
        if option == "compressed":
            return {}
        if isinstance(option, tuple) and len(option) in (2, 3):
            word, *values = option
            if word == "keypos" and len(values) == 1:
                return {"keypos": minus_one(values[0])}
            if word == "heir":
                return {"heir": heir(values)}
            if word in ETS_TUNING and values[0] in (True, False, "auto"):
                return {}
        # Whatever else it is, the table is asked to take it for its type.
        return {"type": str(option) if isinstance(option, Atom) else option}

    def f_lookup_element_3(self) -> Any:
        return self.table.lookup_element(self.args[1], minus_one(self.args[2]))

    def f_delete_1(self) -> Any:
        self.table.drop()
        return True

    def f_take_2(self) -> Any:
        return self.table.take(self.args[1])

    def f_tab2list_1(self) -> Any:
        return self.table.to_list()

    def f_update_counter_4(self) -> Any:
        _, key, op, default = self.args
        if not isinstance(default, tuple):
            raise refused("the default is a tuple")
        return self.table.update_counter(key, from_zero(op), default)

    def f_update_element_3(self) -> Any:
        changes = self.args[2] if isinstance(self.args[2], list) else [self.args[2]]
        if not all(isinstance(change, tuple) and len(change) == 2 for change in changes):
            raise refused("{Pos, Value}")
        return self.table.update_element(
            self.args[1], {minus_one(position): value for position, value in changes}
        )

    def f_select_count_2(self) -> Any:
        return self.table.select_count(spec_from_zero(self.args[1]))

    def f_last_1(self) -> Any:
        return self.table.last()

    def f_prev_2(self) -> Any:
        return self.table.prev(self.args[1])

    def f_rename_2(self) -> Any:
        name = self.name(1)
        self.table.rename(name)
        return Name(name)

    def f_whereis_1(self) -> Any:
        if not isinstance(self.args[0], Atom):
            raise refused("a name is an atom")
        return None if MemoryTable.whereis(str(self.args[0])) is None else Opaque()

    def f_give_away_3(self) -> Any:
        self.table.give_away(self.args[1], self.args[2])
        return True

    def f_setopts_2(self) -> Any:
        options = self.args[1] if isinstance(self.args[1], list) else [self.args[1]]
        for option in options:
            if not isinstance(option, tuple) or not option or option[0] != "heir":
                raise refused(f"option {option!r}")
        for option in options:
            self.table.set_heir(*(heir(list(option[1:])) or (None,)))
        return True

    def fact(self, item: str, value: Any) -> tuple[str, Any]:
        if item == "heir" and value is None and self.table.info("size") is not None:
            return item, Name("none")
        return super().fact(item, value)


class Dets(Calls):
    """dets is DiskTable."""

    done = "ok"
    items: ClassVar = {"filename": "path", "no_objects": "size"}

    def find(self, handle: Any) -> Table:
        if not isinstance(handle, Atom):
            raise refused(f"{handle!r} is no table")
        disks = self.scenario.disks
        if handle not in disks:
            # There is no call on a name that was never opened: a closed table stands for it.
            disks[handle] = DiskTable.open(str(handle), f"{self.scenario.folder}/.never-opened")
            disks[handle].close()
        return disks[handle]

    def f_open_file_2(self) -> Any:
        name, options = self.args
        if not isinstance(name, Atom) or not isinstance(options, list):
            raise refused("a name and a list of options")
        settings: dict[str, Any] = {"path": f"{self.scenario.folder}/{name}"}
        for option in options:
            if not isinstance(option, tuple) or len(option) != 2:
                raise refused(f"option {option!r}")
            word, value = option
            if word == "file":
                settings["path"] = value
            elif word == "keypos":
                settings["keypos"] = minus_one(value)
            elif word in ("type", "access"):
                settings[str(word)] = str(value) if isinstance(value, Atom) else value
            elif word not in DETS_TUNING:
                raise refused(f"option {option!r}")
        self.scenario.disks[name] = DiskTable.open(str(name), **settings)
        return ("ok", Name(name))

    def f_close_1(self) -> Any:
        self.table.close()
        return "ok"

    def f_sync_1(self) -> Any:
        self.table.sync()
        return "ok"

    def f_to_ets_2(self) -> Any:
        return self.table.to_memory(self.args[1])

    def f_from_ets_2(self) -> Any:
        self.table.from_memory(self.args[1])
        return "ok"

    def f_is_dets_file_1(self) -> Any:
        return DiskTable.is_table_file(self.args[0])

    def item(self, word: Any) -> Any:
        return self.items.get(word, super().item(word))


class Opaque:
    """A result of which only the existence matters."""


def minus_one(position: Any) -> Any:
    """A position from 0 for one from 1; what is no position is left for the table to refuse."""
    return position - 1 if type(position) is int else position


def from_zero(op: Any) -> Any:
    """A counter operation with positions from 0."""
    if isinstance(op, list):
        return [from_zero(one) for one in op]
    return (minus_one(op[0]), *op[1:]) if isinstance(op, tuple) and op else op


def spec_from_zero(spec: Any) -> Any:
    """A match specification in which `element` counts from 0."""
    if not isinstance(spec, list):
        return spec
    return [
        (clause[0], *(expression_from_zero(part) for part in clause[1:]))
        if isinstance(clause, tuple) and clause
        else clause
        for clause in spec
    ]


def expression_from_zero(term: Any) -> Any:
    if isinstance(term, list):
        return [expression_from_zero(item) for item in term]
    if not isinstance(term, tuple) or not term or term[0] == "const":
        return term
    if isinstance(term[0], tuple):
        return tuple(tuple(map(expression_from_zero, part)) for part in term)
    name, *arguments = term
    arguments = [expression_from_zero(argument) for argument in arguments]
    if name == "element" and arguments:
        first = arguments[0]
        arguments[0] = first - 1 if type(first) is int else ("-", first, 1)
    return (str(name), *arguments)


def heir(values: list[Any]) -> Any:
    """`{heir, none}` is None, `{heir, Pid, Data}` a pair."""
    return None if values == ["none"] else tuple(values)


def chunk(result: tuple[list[Any], Any]) -> Any:
    """What a call with a limit returns: nothing found is the end of the table."""
    return END_OF_TABLE if result == ([], END_OF_TABLE) else result


def run_scenario(line: Mapping[str, Any], stage: Stage) -> dict[str, Any]:
    """Play one scenario; returns what was seen in the shape of its trace."""
    return TableScenario(line, stage).run()


if __name__ == "__main__":
    import replay

    sys.exit(replay.main())
