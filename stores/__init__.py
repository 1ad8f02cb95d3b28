"""Tables, conversation stores, group commit, and the shape of a message (floor 3)."""

from .errors import (
    AppendConflict,
    CursorConflict,
    DamagedStore,
    DiskFull,
    ForeignFormat,
    ForkedStore,
    InvalidConversationId,
    InvalidMessage,
    NewerFormat,
    PredecessorMissing,
    ReadOnlyStore,
    StaleEpoch,
    StoreError,
    StoreInUse,
    StoreUnavailable,
)
from .grouping import Group, Grouping, grouped
from .message import Message, ToolCall
from .record import Appended, ConversationInfo, Log, NewRecord, Record, Tail
from .token_counter import NoCounter, TokenCounter

__all__ = [
    "AppendConflict",
    "Appended",
    "ConversationInfo",
    "CursorConflict",
    "DamagedStore",
    "DiskFull",
    "ForeignFormat",
    "ForkedStore",
    "Group",
    "Grouping",
    "InvalidConversationId",
    "InvalidMessage",
    "Log",
    "Message",
    "NewRecord",
    "NewerFormat",
    "NoCounter",
    "PredecessorMissing",
    "ReadOnlyStore",
    "Record",
    "StaleEpoch",
    "StoreError",
    "StoreInUse",
    "StoreUnavailable",
    "Tail",
    "TokenCounter",
    "ToolCall",
    "grouped",
]
