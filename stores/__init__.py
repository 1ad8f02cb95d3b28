"""Tables, conversation stores, group commit, and the shape of a message (floor 3)."""

from .blob_store import BlobStore
from .contract import ConversationStore
from .disk_session_store import DiskSessionStore
from .disk_store import DiskStore
from .disk_table import DiskTable
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
    StoreNotStarted,
    StoreUnavailable,
)
from .grouping import Group, Grouping, grouped
from .match_spec import ANY, BINDINGS, ROW, Var
from .memory_session_store import MemorySessionStore
from .memory_store import MemoryStore
from .memory_table import MemoryTable
from .message import Message, ToolCall
from .plain import NotPlain, value_fingerprint
from .record import Appended, ConversationInfo, Log, NewRecord, Record, Tail
from .session_contract import SessionJournal, SessionStore
from .session_state import HEAD, SessionState
from .simple_store import SimpleStore
from .store import Store
from .store_handle import StoreHandle
from .table import Continuation, Table
from .table_errors import TableError, TableFileError
from .table_rows import END_OF_TABLE
from .term_order import Atom
from .token_counter import NoCounter, TokenCounter, default_counter
from .value_copy import never_changes

__all__ = [
    "ANY",
    "AppendConflict",
    "Appended",
    "Atom",
    "BINDINGS",
    "BlobStore",
    "Continuation",
    "ConversationInfo",
    "ConversationStore",
    "CursorConflict",
    "DamagedStore",
    "DiskFull",
    "DiskSessionStore",
    "DiskStore",
    "DiskTable",
    "END_OF_TABLE",
    "ForeignFormat",
    "ForkedStore",
    "Group",
    "Grouping",
    "HEAD",
    "InvalidConversationId",
    "InvalidMessage",
    "Log",
    "MemorySessionStore",
    "MemoryStore",
    "MemoryTable",
    "Message",
    "NewRecord",
    "NewerFormat",
    "NoCounter",
    "NotPlain",
    "PredecessorMissing",
    "ROW",
    "ReadOnlyStore",
    "Record",
    "SessionJournal",
    "SessionState",
    "SessionStore",
    "SimpleStore",
    "StaleEpoch",
    "Store",
    "StoreError",
    "StoreHandle",
    "StoreInUse",
    "StoreNotStarted",
    "StoreUnavailable",
    "Table",
    "TableError",
    "TableFileError",
    "Tail",
    "TokenCounter",
    "ToolCall",
    "Var",
    "default_counter",
    "grouped",
    "never_changes",
    "value_fingerprint",
]
