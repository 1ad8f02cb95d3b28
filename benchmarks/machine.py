"""What the figures were measured on, and how much memory a process holds."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("keepwell", "pykka", "lmdb", "msgpack", "tiktoken", "uvloop", "openai-agents",
             "langgraph", "langgraph-checkpoint-sqlite", "redis")


def machine() -> dict[str, object]:
    """Describe this machine: processor, cores, memory, system, Python, packages, load, date."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "switch_interval_ms": sys.getswitchinterval() * 1e3,
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "load": round(os.getloadavg()[0], 2),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def one_line(described: dict[str, object]) -> str:
    """Return `machine()` in one line, as it stands above a table."""
    return "{processor}, {cores} cores, {system}, {python}, load {load}, {date}".format(**described)


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes (its peak where /proc is absent)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def anonymous_bytes() -> int:
    """Return what of `resident_bytes()` is not a page of a file, mapped or shared (Linux; else
    all of it)."""
    try:
        _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    except OSError:
        return resident_bytes()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
