"""The words of a text, for an index of words. Pure.

Index and query are cut by the same function, so that a message is found by its own words whatever
its script. Chinese, Japanese, Korean and Thai are written without spaces: a run of them becomes its
overlapping pairs of characters, the usual way to search such text without a dictionary.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import islice
from typing import Final

MAX_QUERY_TERMS: Final = 64
"""Distinct terms of a query; a pasted page is searched by its first ones."""

_WORD: Final = re.compile(r"[^\W_]+")
_UNSPACED: Final = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
    "\uf900-\ufaff\U00020000-\U0003134f]+)"
)


def search_terms(text: str) -> Iterator[str]:
    """The terms of a text in order, compatibility forms and case folded (NFKC, casefold).

    Terms consist of letters and digits only. Lone surrogates and everything else separate them.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    for word in _WORD.finditer(folded):
        for part in _UNSPACED.split(word.group()):
            if not part:
                continue
            if len(part) > 1 and _UNSPACED.match(part):
                yield from (part[place : place + 2] for place in range(len(part) - 1))
            else:
                yield part


def match_expression(text: str) -> str | None:
    """The FTS5 expression that finds any of a text's words; None if it has none.

    Each term is a string in double quotes and a term has letters and digits only: nothing in a
    user's text is ever an operator, a column or a quote.
    """
    terms = islice(dict.fromkeys(search_terms(text)), MAX_QUERY_TERMS)
    return " OR ".join(f'"{term}"' for term in terms) or None
