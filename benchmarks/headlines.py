"""The figures by which one judges at a glance: on top of the report, and in the README."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .benchmark import Ratio
from .report import number

Kind = Literal["times", "factor", "bytes", "ms", "rate"]


_UNITS: dict[Kind, str] = {"times": "x", "factor": "x", "bytes": " bytes", "ms": " ms",
                           "rate": "/s"}  # fmt: skip


@dataclass(frozen=True)
class Headline:
    """One ratio of one benchmark.

    `asks` is its row in the README, `card` what stands below the value on the report ("" for none
    there). `kind`: "times" as fast or cheap as the other (more is better), a growth "factor" (1 is
    level), or an absolute figure in its unit. `floors` are those on Python 3.12 and newer and on
    3.11, where they differ; else the ratio's own floor or ceiling holds.
    """

    benchmark: str
    ratio: str
    asks: str
    kind: Kind = "times"
    card: str = ""
    floors: tuple[float, float] | None = None

    def shown(self, value: float) -> str:
        """Return `value` with its unit."""
        return number(value) + _UNITS[self.kind]

    def holds(self, value: float, ratio: Ratio, python: str) -> bool:
        """Tell whether `value` is within the bounds for `python`, such as "CPython 3.11.7"."""
        if self.floors is None:
            return ratio.holds(value)
        return value >= self.floors[" 3.11." in python]


HEADLINES = (
    Headline("messaging", "tell_vs_pykka", "tell, one to one, against pykka",
             card="as many messages a second as pykka"),
    Headline("messaging", "tell_to_1000_vs_pykka", "tell to 1,000 actors in turn, against pykka",
             card="as many to 1,000 actors in turn"),
    Headline("messaging", "ask_pipelined_vs_pykka_cpu", "100 asks outstanding, CPU time"),
    Headline("messaging", "call_same_loop_vs_pykka_ask",
             "`await ref.call()` on one loop, against a blocking ask of pykka",
             floors=(8.0, 3.0)),
    Headline("messaging", "ring_vs_pykka", "a message around 1,000 actors, against pykka"),
    Headline("spawn", "spawn_vs_pykka", "start, against pykka", card="as many starts a second"),
    Headline("spawn", "spawn_stop_vs_pykka", "start and stop, against pykka"),
    Headline("spawn", "bytes_per_idle_actor", "resident memory of an idle actor", "bytes",
             "of memory an idle actor"),
    Headline("recovery", "restart_p50_ms", "from a crash to the next answer, 10,000 siblings", "ms",
             "from a crash to the next answer"),
    Headline("append", "append_64_vs_raw_lmdb",
             "durable appends of 64 conversations, against raw LMDB",
             card="raw LMDB's rate of durable writes"),
    Headline("append", "append_512_vs_raw_lmdb", "… of 512 conversations"),
    Headline("append", "append_64_vs_txn_per_append", "… against one transaction an append"),
    Headline("append", "append_64_vs_sqlite_full", "… against SQLite WAL, synchronous FULL",
             card="as many durable appends as SQLite"),
    Headline("append", "append_64_vs_redis_always", "… against Redis, appendfsync always",
             card="as many durable appends as Redis"),
    Headline("append", "append_64_vs_dets", "… against Erlang's DETS, synced"),
    Headline("append", "append_at_100k_vs_at_0",
             "an append at 100,000 records, against an empty log", "factor"),
    Headline("append_load", "append_knee_per_s", "durable appends a second before latency bends up",
             "rate", "durable appends before latency bends up"),
    Headline("append_load", "append_p999_ms_at_knee", "p99.9 of an append at that rate", "ms"),
    Headline("turn", "turns_64_vs_openai_agents",
             "a durable turn at 64 conversations, against the OpenAI Agents SDK",
             card="as many durable turns as the OpenAI Agents SDK"),
    Headline("turn", "turns_64_vs_langgraph", "… against LangGraph",
             card="as many durable turns as LangGraph"),
    Headline("turn", "turn_cpu_ms_64", "CPU time of such a turn", "ms", "of processor time a turn"),
    Headline("turn", "turn_at_10k_history_vs_at_0", "a turn after 10,000 messages, with a window",
             "factor"),
    Headline("turn_load", "turn_knee_per_s", "durable turns a second before latency bends up",
             "rate", "durable turns before latency bends up"),
    Headline("turn_load", "turn_p999_ms_at_knee", "p99.9 of a turn at that rate", "ms"),
    Headline("fleet", "fleet_100k_bytes_passive", "a passive conversation of a fleet", "bytes",
             "a passive conversation of a fleet"),
    Headline("fleet", "agent_bytes_idle", "a live, idle agent", "bytes"),
    Headline("reopen", "reopen_1m_vs_1k", "opening a store of 1,000,000 messages, against 1,000",
             "factor"),
    Headline("tail", "tail50_at_100k_vs_at_100", "the last 50 of 100,000 messages, against of 100",
             "factor"),
)
