"""Tables, conversation stores, group commit, and the shape of a message (floor 3)."""

from .contract import ConversationStore
from .disk_store import DiskStore
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
from .memory_store import MemoryStore
from .message import Message, ToolCall
from .record import Appended, ConversationInfo, Log, NewRecord, Record, Tail
from .store import Store
from .store_handle import StoreHandle
from .token_counter import NoCounter, TokenCounter, default_counter

__all__ = [
    "AppendConflict",
    "Appended",
    "ConversationInfo",
    "ConversationStore",
    "CursorConflict",
    "DamagedStore",
    "DiskFull",
    "DiskStore",
    "ForeignFormat",
    "ForkedStore",
    "Group",
    "Grouping",
    "InvalidConversationId",
    "InvalidMessage",
    "Log",
    "MemoryStore",
    "Message",
    "NewRecord",
    "NewerFormat",
    "NoCounter",
    "PredecessorMissing",
    "ReadOnlyStore",
    "Record",
    "StaleEpoch",
    "Store",
    "StoreError",
    "StoreHandle",
    "StoreInUse",
    "StoreUnavailable",
    "Tail",
    "TokenCounter",
    "ToolCall",
    "default_counter",
    "grouped",
]
