"""The flow nodes, at the front door: `from keepwell import flow`."""

from .sessions.flow import *  # noqa: F403 - all of its names, and only those
from .sessions.flow import __all__ as __all__
