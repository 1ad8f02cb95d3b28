"""The documentation says what the kept run measured, and a run can be put into it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from keepwell.actors.errors import InvalidValue
from keepwell.benchmarks import figures

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("without_collection")


@pytest.fixture(scope="module")
def kept() -> list[figures.Run]:
    return figures.kept(ROOT)


@pytest.mark.parametrize("page", figures.PAGES)
def test_a_page_says_what_the_kept_run_measured(page: str, kept: list[figures.Run]) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert figures.fill(text, kept) == text, "run `python -m benchmarks.figures`"


def test_the_pictures_show_what_the_kept_run_measured(kept: list[figures.Run]) -> None:
    drawn = dict(figures.pictures(kept[0]))
    assert len(drawn) == 2 * len(figures.DRAWN)
    folder = ROOT / figures.PICTURES
    assert set(drawn) <= {path.name for path in folder.iterdir()}
    for name, svg in drawn.items():
        assert (folder / name).read_text(encoding="utf-8") == svg, name
        ElementTree.fromstring(svg)
        assert "var(" not in svg, "a picture in a README has no page to take its colours from"
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    named = [name for name in drawn if f"{figures.PICTURES}/{name}" in shown]
    assert named, "the README shows none of them"


def run(**ratios: float) -> figures.Run:
    row: dict[str, Any] = {
        "question": "tell", "contender": "keepwell", "unit": "message", "operations": 10,
        "rounds": 3, "per_second": 3_129_000.0, "wall_us": 0.3196, "spread": 0.1, "cpu_us": 0.3}
    machine = {"python": "CPython 3.11.7", "processor": "P", "cores": 2, "system": "S",
               "load": 0.1, "date": "2026-01-02T00:00:00Z"}
    return figures.Run([{"benchmark": "messaging", "machine": machine, "ratios": ratios, "rows": [
        row, {**row, "contender": "erlang", "missing": "no erl"}]}])


def test_what_stands_between_the_marks_is_made_from_the_run() -> None:
    text = ("a\n<!-- figures: rows messaging tell -->\nold\n<!-- end of figures -->\nb\n"
            "<!-- figures: machine -->\n<!-- end of figures -->\n")
    filled = figures.fill(text, [run()])
    assert "| keepwell | 3.13 M messages | 0.3 |  |" in filled
    assert "| erlang | - | - | no erl |" in filled
    assert "Measured on 2026-01-02: P, 2 cores, S, CPython 3.11.7; load 0.1" in filled
    assert filled.startswith("a\n") and "\nb\n" in filled and "old" not in filled
    assert figures.fill(filled, [run()]) == filled


def test_a_headline_that_misses_its_bound_says_so() -> None:
    table = figures.fill("<!-- figures: headlines -->\n<!-- end of figures -->",
                         [run(tell_vs_pykka=12.0), run(tell_vs_pykka=24.0)])
    assert "| `tell_vs_pykka` | 12x (misses its bound) | 24x | 20 |" in table


def test_a_bound_that_depends_on_the_python_is_that_of_the_run() -> None:
    newer = run(call_same_loop_vs_pykka_ask=4.0)
    newer.machine["python"] = "CPython 3.13.0"  # type: ignore[index]  # a dict, which this test made
    table = figures.fill("<!-- figures: headlines -->\n<!-- end of figures -->",
                         [run(call_same_loop_vs_pykka_ask=4.0), newer])
    assert "| 4x | 4x (misses its bound) | 8; 3 on 3.11 |" in table


def test_a_mark_that_says_nothing_known_is_refused() -> None:
    with pytest.raises(InvalidValue, match="figures: nonsense"):
        figures.fill("<!-- figures: nonsense -->\n<!-- end of figures -->", [run()])


@pytest.mark.parametrize("content", ["{", "[]", "[1]", '{"benchmark": "x"}', None])
def test_what_is_no_run_is_refused(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidValue, match=r"bench\.json"):
        figures.load(path)


def test_a_run_is_kept_and_put_into_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    for page in figures.PAGES:
        (tmp_path / page).write_text(
            "<!-- figures: ratios messaging tell -->\n<!-- end of figures -->\n")
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    assert figures.main([]) == 2
    assert "no run is kept" in capsys.readouterr().err
    given = tmp_path / "bench.json"
    given.write_text(json.dumps(list(run(tell_vs_pykka=24.5).reports)))
    assert figures.main([str(given)]) == 0
    (only,) = (tmp_path / "docs/figures").iterdir()
    assert only.name == "1-cpython-3.11.7.json"
    said = (tmp_path / "README.md").read_text()
    assert "keepwell does 24.5 times as many messages as pykka" in said
    assert (tmp_path / "docs/pictures/tell-dark.svg").exists()
