"""The text of a message or turn as a token counter sees it.

Media would be miscounted as text: a base64 image of a megabyte is some hundred thousand tokens of
text, but one or two thousand to the model. The payload is left out of the text and a flat estimate
is added for it. Rules: F2, and F23 of the fault list.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Final

from ..stores.message import Message

MEDIA_TOKENS: Final = 1_600
"""Flat estimate for one image, file or sound: the most that the large providers charge for an
image at its usual resolution (about 1,100 and 1,600 tokens)."""

MEDIA_TYPES: Final = frozenset({
    "image", "image_url", "input_image", "file", "input_file", "document", "audio", "input_audio",
    "video",
})  # fmt: skip
"""The `type`s of content parts that carry media, in the words of the large providers."""

_SHORT: Final = 1_024  # characters; a longer string of a media part is its payload, not a name


def message_text(message: Message) -> tuple[str, int]:
    """`(text, media)`: what to count as text, and the number of media beside it."""
    return counted_text(
        message.content, [(call.name, call.arguments) for call in message.tool_calls]
    )


def counted_text(content: object, calls: Iterable[tuple[str, object]]) -> tuple[str, int]:
    """`(text, media)`: content, then name and arguments of each call, joined by newlines.

    What is no str stands as compact JSON, unescaped; None content as nothing. The payloads of
    media parts are left out of the text and counted in `media`.
    """
    parts: list[str] = []
    media = 0
    if content is not None:
        text, media = _text(content)
        parts.append(text)
    for name, arguments in calls:
        text, more = _text(arguments)
        media += more
        parts += [name, text]
    return "\n".join(parts), media


def _text(value: object) -> tuple[str, int]:
    if isinstance(value, str):
        return value, 0
    plain, media = _without_payloads(value)
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), default=str), media


def _without_payloads(value: object) -> tuple[object, int]:
    """JSON data without the payloads of media parts, and the number of these."""
    if isinstance(value, bytes):
        return "", 1
    if isinstance(value, float) and not math.isfinite(value):
        return None, 0
    if isinstance(value, Mapping):
        if value.get("type") in MEDIA_TYPES:
            return _emptied(value), 1
        items = {str(key): _without_payloads(item) for key, item in value.items()}
        return {key: item for key, (item, _) in items.items()}, sum(n for _, n in items.values())
    if isinstance(value, list | tuple):
        pairs = [_without_payloads(item) for item in value]
        return [item for item, _ in pairs], sum(n for _, n in pairs)
    return value, 0


def _emptied(value: object) -> object:
    """A media part with its payload strings emptied; text inside a document stays."""
    if isinstance(value, bytes):
        return ""
    if isinstance(value, str):
        return "" if len(value) > _SHORT or value.startswith("data:") else value
    if isinstance(value, Mapping):
        if value.get("type") == "text":
            return _without_payloads(value)[0]
        return {str(key): _emptied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_emptied(item) for item in value]
    return value
