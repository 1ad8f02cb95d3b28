"""What records have kept as blobs, in exports and imports.

Before a record whose message has a `content_ref` stands, once a conversation, what is kept under
it: `{"blob": ref, "data": base64}`. An import stores it, held by the records of the conversation.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from typing import Any

from ..actors.errors import RequestError
from . import blob_ledger
from .blob_store import check_tenant, parse_ref
from .disk_engine import DiskEngine
from .json_lines import line
from .record import Record
from .session_errors import BlobIntegrityError
from .session_request import Operation


def blob_lines(engine: DiskEngine, record: Record, done: set[str]) -> Iterator[str]:
    """The line of what a record's message has elsewhere, if it is kept and not `done`."""
    ref = None if record.message is None else record.message.extra.get("content_ref")
    if not isinstance(ref, str) or ref in done:
        return
    done.add(ref)
    tenant = ref.partition("/")[0]
    try:
        data: bytes = engine.read_rows(lambda rows: blob_ledger.get(rows, tenant, ref))
    except (RequestError, BlobIntegrityError):
        return  # collected, damaged, or somebody else's field of that name
    yield line({"blob": ref, "data": base64.b64encode(data).decode()})


def keep_blob(engine: DiskEngine, conversation_id: str, item: dict[str, Any]) -> None:
    """Store what such a line says. Raises ValueError with what is wrong with it, `DiskFull`."""
    ref, encoded = item.get("blob"), item.get("data")
    if not isinstance(ref, str) or not isinstance(encoded, str):
        raise ValueError("this is no blob: it has a ref and base64 data")
    try:
        tenant = check_tenant(ref.partition("/")[0])
        digest = parse_ref(tenant, ref)
    except RequestError as problem:
        raise ValueError(f"this is no blob: {problem}") from problem
    data = base64.b64decode(encoded, validate=True)
    if sha256(data).digest() != digest:
        raise ValueError("the data of this blob has another hash than its ref says")
    keep = partial(
        blob_ledger.keep_for_records, tenant=tenant, data=data, digest=digest, now=time.time(),
        conversation_id=conversation_id, epoch=engine.info(conversation_id).epoch,
    )  # fmt: skip
    (answer,) = engine.commit([Operation(keep)])
    if isinstance(answer, BaseException):
        raise answer
