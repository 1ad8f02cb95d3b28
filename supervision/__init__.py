"""Child specs, the restart decision, supervisors, tree inspection (floor 2)."""

from .child_spec import (
    DEFAULT_SHUTDOWN,
    ChildSpec,
    ChildSpecLike,
    InvalidChildSpec,
    check_childspecs,
)
from .dynamic_supervisor import DynamicSupervisor
from .requests import (
    ChildCount,
    ChildInfo,
    ChildRequestError,
    count_children,
    delete_child,
    get_childspec,
    restart_child,
    start_child,
    terminate_child,
    which_children,
)
from .settings import Backoff, FailedToStartChild, InvalidSetting, InvalidSupervisor
from .supervisor import Supervisor
from .supervisor_ref import SupervisorRef
from .tree import TreeNode, tree, tree_text

__all__ = [
    "DEFAULT_SHUTDOWN",
    "Backoff",
    "ChildCount",
    "ChildInfo",
    "ChildRequestError",
    "ChildSpec",
    "ChildSpecLike",
    "DynamicSupervisor",
    "FailedToStartChild",
    "InvalidChildSpec",
    "InvalidSetting",
    "InvalidSupervisor",
    "Supervisor",
    "SupervisorRef",
    "TreeNode",
    "check_childspecs",
    "count_children",
    "delete_child",
    "get_childspec",
    "restart_child",
    "start_child",
    "terminate_child",
    "tree",
    "tree_text",
    "which_children",
]
