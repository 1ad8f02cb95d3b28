"""Every row of the contracts is cited by a test.

A *row* is an id in the first column of a table in `docs/contracts/*.md`, or one of the window's
rules (WN-1…7), which stand in sentences. A *citation* is made by a test: in its name
(`test_kf_8_…`, `…_ds5`), in its docstring, in a comment within it, or by a string that is nothing
but the id (the tables whose lines name their row). `C1…C7` and `C1 to C7` stand for all between.
What the docstring of a module or a class says it is about proves nothing and does not count.

Two contracts have rows that begin with F. F1…F14 are those of sessions.md. F01…F09 and F15…F73 can
only be faults; F10…F14 are faults where "fault" stands before them: `fault F12`, `faults F12, F13`,
`test_tl_2_fault_f13_…`. Here all faults are spelled so. Ids without a hyphen are words of other
notations too (the lines of a table about `A12 T1`): strings do not cite them. In tests/otp they are
the recorded scenarios, and cite nothing.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = ROOT / "docs" / "contracts"

DOCUMENTS = {"memory.md": 157, "sessions.md": 96, "faults.md": 73, "supervision.md": 127}
"""The contracts, and how many rows they have: a table that is no longer found must not pass."""

_ID = r"[A-Z]{1,6}-?\d+[a-z]?"
_CITED = re.compile(
    r"(?<![\w.-])([A-Z]{1,6}-?)(\d+)([a-z]?)(?:\s*(?:…|\.\.\.?|to)\s*(?:\1)?(\d+))?(?![\w-])"
)
_FAULTS = re.compile(rf"\b[Ff]aults?\s+{_ID}(?:(?:\s*(?:,|…|and|to)\s*)+{_ID})*")


def rows(document: str) -> list[str]:
    """The ids of a contract's rows, in order."""
    found: list[str] = []
    for line in (CONTRACTS / document).read_text(encoding="utf-8").splitlines():
        if cell := re.match(rf"\| ({_ID}[^|]*) \|", line):
            found += _spread(cell[1])
        elif document == "memory.md":
            found += re.findall(r"(?:^|(?<=\. ))(WN-\d+)(?= [A-Z])", line)
    return [f"fault {row}" for row in found] if document == "faults.md" else found


def _spread(cell: str) -> Iterator[str]:
    """`DYN-4 to 6`, `CALL-8, CAST-1` and `STRAT-4, 5` as single ids."""
    prefix = ""
    for part in cell.split(", "):
        match = re.fullmatch(r"([A-Z]+-?)?(\d+)([a-z]?)(?: to (\d+))?", part)
        assert match is not None, f"{cell!r} is no list of ids"
        prefix = match[1] or prefix
        yield f"{prefix}{match[2]}{match[3]}"
        if match[4]:
            yield from (f"{prefix}{n}" for n in range(int(match[2]) + 1, int(match[4]) + 1))


def _spelled(row: str, *, fault: bool) -> str:
    """`fault F12` for a row of faults.md, else the row itself."""
    two_digits = re.fullmatch(r"F(\d\d)", row)
    if two_digits and (fault or row[1] == "0" or int(two_digits[1]) > 14):
        return f"fault {row}"
    return row


def cited_in(text: str) -> Iterator[str]:
    """The rows that a docstring or a comment cites."""
    faults = [m.span() for m in _FAULTS.finditer(text)]
    for match in _CITED.finditer(text):
        prefix, first, letter, last = match.groups()
        fault = any(start <= match.start() < end for start, end in faults)
        yield _spelled(f"{prefix}{first}{letter}", fault=fault)
        for number in range(int(first) + 1, int(last or 0) + 1):
            yield _spelled(f"{prefix}{number:0{len(first)}}", fault=fault)


def cited_by_name(name: str) -> Iterator[str]:
    """The rows in the name of a test: `kf_8` and `ds5` with a hyphen, `f01` and `b9a` without."""
    words = name.split("_")
    fault = False
    for i, word in enumerate(words):
        fault = fault or word == "fault"
        if match := re.fullmatch(r"([a-z]{1,6})(\d+[a-z]?)", word):
            prefix, number = match.groups()
            hyphen = "-" if len(prefix) > 1 else ""
            yield _spelled(f"{prefix.upper()}{hyphen}{number}", fault=fault)
        elif i and re.fullmatch(r"\d+[a-z]?", word) and words[i - 1].isalpha():
            yield f"{words[i - 1].upper()}-{word}"


def cited_by(source: str) -> set[str]:
    """The rows that the tests of one module cite."""
    tree = ast.parse(source)
    found: set[str] = set()
    within: set[int] = set()  # the lines of tests, their decorators included
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith("test_"):
                found.update(cited_by_name(node.name))
                found.update(cited_in(ast.get_docstring(node) or ""))
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                within.update(range(first, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(r"[A-Z]{1,6}-\d+[a-z]?", node.value):
                found.add(node.value)
    if not re.search(rf"#.*{_ID}", source):
        return found  # tokens cost more than all the rest
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.start[0] in within:
            found.update(cited_in(token.string))
    return found


def cited() -> set[str]:
    """The rows that any test cites, of the project or of the suites that it ships."""
    found: set[str] = set()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if path == Path(__file__):
            continue  # it speaks of citations
        by_this = cited_by(path.read_text(encoding="utf-8"))
        otp = path.parent.name == "otp"
        found |= {row for row in by_this if "-" in row} if otp else by_this
    for path in sorted((ROOT / "keepwell" / "testing").glob("*.py")):
        found |= cited_by(path.read_text(encoding="utf-8"))
    return found | _pinned()


def _pinned() -> set[str]:
    """The rules that the recorded scenarios pin, those aside that are not replayed."""
    found: set[str] = set()
    for path in sorted((ROOT / "tests" / "otp" / "traces").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            scenario = json.loads(line)
            if "skip" not in scenario.get("keepwell", {}):
                found.update(scenario["rules"])
    return found


@pytest.fixture(scope="module")
def cited_rows() -> set[str]:
    return cited()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_row_is_cited(document: str, cited_rows: set[str]) -> None:
    assert len(rows(document)) == DOCUMENTS[document]
    missing = [row for row in rows(document) if row not in cited_rows]
    assert missing == [], f"no test cites these rows of {document}: find or write it, and cite them"


def test_rows_of_the_contracts_have_different_ids() -> None:
    every = [row for document in DOCUMENTS for row in rows(document)]
    assert len(every) == len(set(every))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("KF-8, and CS-15a.", {"KF-8", "CS-15a"}),
        ("B6…B8 and D6 to D8", {"B6", "B7", "B8", "D6", "D7", "D8"}),
        ("WN-1...3", {"WN-1", "WN-2", "WN-3"}),
        ("F4 is no F44", {"F4", "fault F44"}),
        ("F04, F14; F15", {"fault F04", "F14", "fault F15"}),
        ("fault F12, then F13", {"fault F12", "F13"}),
        ("faults F09, F10 and F11…F13: F14", {
            "fault F09", "fault F10", "fault F11", "fault F12", "fault F13", "F14",
        }),
        ("xKF-8 KF-8x1 o200k_base UTF-8-ish B2B", set()),
    ],
)  # fmt: skip
def test_what_text_cites(text: str, found: set[str]) -> None:
    assert set(cited_in(text)) == found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("test_kf_8_a_temporary_conversation", {"KF-8"}),
        ("test_ids_isolate_cs7_cs9", {"CS-7", "CS-9"}),
        ("test_follows_cs15a", {"CS-15a"}),
        ("test_b9a_a_known_key", {"B9a"}),
        ("test_tl_2_fault_f13_f45_a_raising_call", {"TL-2", "fault F13", "fault F45"}),
        ("test_f12_each_turn_is_summarized_once", {"F12"}),
        ("test_kf_5_d_3_an_outer_retry", {"KF-5", "D-3"}),
        ("test_an_add_fault_f09", {"fault F09"}),
    ],
)
def test_what_a_name_cites(name: str, found: set[str]) -> None:
    known = {row for document in DOCUMENTS for row in rows(document)}
    assert set(cited_by_name(name)) & known == found


def test_only_tests_cite() -> None:
    source = '''
"""A module about KF-1."""
# KF-2 above the tests
TABLE = [("WT-1", "A12 T1"), ("a WT-2", "F3")]

class TestStore:
    """All of CS-1."""

    def test_it(self):
        """CS-2."""
        value = "DS-1"  # DS-2
'''
    assert cited_by(source) == {"WT-1", "CS-2", "DS-1", "DS-2"}
