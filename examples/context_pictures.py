"""What a model is shown of one conversation: the pictures of docs/context.md, from real runs.

Each row is an agent with its own policy, asked the same question in the same conversation. A box is
a message, as wide as its tokens; full boxes were in the request that the model got, empty ones were
not. Give a folder to write the pictures there as SVG.
"""

import asyncio
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import keepwell
from keepwell import ContextPolicy, Message
from keepwell.memory.turn import Turn

TALK = [
    ("user", "My dog is called Rex and is a beagle."), ("assistant", "A fine name for a beagle!"),
    ("user", "We leave for Lisbon on Friday."), ("assistant", "I will keep that in mind."),
    ("user", "What is the weather there?"), ("calls", "weather Lisbon"),
    ("tool", "Lisbon: sunny, 24 degrees, light wind from the north"),
    ("assistant", "Sunny, 24 degrees, and a light wind."),
    ("user", "And where could we eat by the river?"),
    ("assistant", "Try the place at the old ferry landing; it is open until ten."),
    ("user", "Book a table for four, please."), ("calls", "book ferry landing 4"),
    ("tool", "booked: ferry landing, four people, eight o'clock"),
    ("assistant", "A table for four is booked for eight."),
    ("user", "Remind me to bring the tickets."), ("assistant", "I will remind you on Friday."),
]  # fmt: skip
QUESTION = "Is there something that my dog would like?"
COLOURS = {"user": "#2f6fab", "assistant": "#3b8a5a", "calls": "#8a6d3b", "tool": "#b08d4f"}
WIDTH, LEFT, HEIGHT = 3.1, 150, 62


class Row(NamedTuple):
    """What one policy showed its model."""

    name: str
    messages: Sequence[Message]
    report: Any


def as_messages() -> list[Message]:
    """The conversation and the question as messages."""
    messages: list[Message] = []
    calls = 0
    for role, text in TALK:
        if role == "calls":
            calls += 1
            call = {"id": f"call{calls}", "name": "tool", "arguments": {"text": text}}
            messages.append(Message("assistant", None, [call]))
        elif role == "tool":
            messages.append(Message("tool", text, tool_call_id=f"call{calls}"))
        else:
            messages.append(Message(role, text))
    return [*messages, Message("user", QUESTION)]


def cost(message: Message) -> int:
    """The tokens of a message: four characters each, calls with their arguments."""
    text = message.text + "".join(f"{c.name}{c.to_dict()['arguments']}" for c in message.tool_calls)
    return keepwell.approx_token_count(text)


CONVERSATION = as_messages()


async def shown(name: str, context: ContextPolicy | None = None, recall: int | None = None) -> Row:
    """What the model of an agent with this policy is shown, and the report of it."""
    requests: list[keepwell.ModelRequest] = []
    reports: list[Any] = []

    def model(request: keepwell.ModelRequest) -> str:
        requests.append(request)
        return "Let me think."

    async with keepwell.Runtime(counter=keepwell.NoCounter()) as runtime:
        memory: keepwell.RecallProvider | str = "default"
        if recall is not None:
            retriever = keepwell.FullTextRetriever(runtime.store)
            await runtime.start_child(retriever.child_spec())
            memory = keepwell.RecallProvider(
                runtime.store, retriever, recall, count_tokens=keepwell.approx_token_count
            )
        spec = keepwell.AgentSpec(
            keepwell.FunctionModel(model),
            memory=memory,
            context=context,
            count_tokens=keepwell.approx_token_count,
        )
        agent = await runtime.spawn(spec, "talk")
        await agent.add_messages(CONVERSATION[:-1])
        with keepwell.telemetry.attach("keepwell.context.shown", lambda _, f: reports.append(f)):
            await agent.run(QUESTION)
    return Row(name, requests[0].messages, reports[0]["report"])


def told(row: Row) -> list[str]:
    """What the system messages of a request said, and what all of it cost."""
    report = row.report
    said = [m.text.splitlines()[0].rstrip(":.") for m in row.messages if m.role == "system"]
    most = "" if report.max_tokens is None else f" of {report.max_tokens}"
    return [*said, f"{report.tokens}{most} tokens"]


def text_row(row: Row) -> str:
    """A row as text: one letter a message, small if it was left out."""
    name, messages, _report = row
    letters = {"user": "U", "assistant": "A", "tool": "T"}
    drawn = "".join(
        letters[each.role] if is_in(each, messages) else letters[each.role].lower()
        for each in CONVERSATION
    )
    return f"{name:16} {drawn}  {'; '.join(told(row))}"


def is_in(message: Message, messages: Sequence[Message]) -> bool:
    """Whether a message of the log is among those shown."""
    what = (message.role, message.content, message.tool_call_id, message.tool_calls)
    return any((m.role, m.content, m.tool_call_id, m.tool_calls) == what for m in messages)


def svg(rows: Sequence[Row]) -> str:
    """The rows as a picture."""
    end = LEFT + sum(cost(each) * WIDTH + 3 for each in CONVERSATION)
    width, height = round(end + 20), HEIGHT * len(rows) + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        '<g font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, row in enumerate(rows):
        name, messages, _report = row
        top, left = 12 + number * HEIGHT, float(LEFT)
        out.append(f'<text x="10" y="{top + 18}" font-weight="bold">{escape(name)}</text>')
        for each in CONVERSATION:
            role = "calls" if each.tool_calls else each.role
            size, colour = cost(each) * WIDTH, COLOURS[role]
            full = is_in(each, messages)
            look = f'fill="{colour}"' if full else 'fill="none" stroke-dasharray="3 2"'
            out.append(
                f'<rect x="{left:.1f}" y="{top}" width="{size:.1f}" height="26" rx="3" {look}'
                f' stroke="{colour}"><title>{escape(each.text or "a tool call")}</title></rect>'
            )
            left += size + 3
        words = escape(" · ".join(told(row)))
        out.append(f'<text x="{LEFT}" y="{top + 42}" fill="#555555">{words}</text>')
    left, top = LEFT, height - 10
    names = {"user": "user", "assistant": "assistant", "calls": "tool call", "tool": "its result"}
    for role, word in names.items():
        colour = COLOURS[role]
        out.append(f'<rect x="{left}" y="{top - 10}" width="12" height="12" fill="{colour}"/>')
        out.append(f'<text x="{left + 17}" y="{top}">{word}</text>')
        left += 95
    out.append(f'<text x="{left}" y="{top}" fill="#555555">dashed: not shown</text></g></svg>')
    return "\n".join(out) + "\n"


def summarizer(previous: str | None, new: Sequence[Turn]) -> str:
    """Stands in for a model that sums up."""
    return "The user leaves for Lisbon on Friday, with a beagle called Rex."


async def pictures() -> dict[str, list[Row]]:
    """The rows of each picture."""
    whole = ContextPolicy("whole_session", 120)
    summary = ContextPolicy("summary", 120, summarizer)
    return {
        "context-budgets.svg": [
            await shown(f"max_tokens={budget}", ContextPolicy("whole_session", budget))
            for budget in (240, 160, 120, 40)
        ],
        "context-ways.svg": [
            await shown("local", ContextPolicy("local")),
            await shown("whole_session", whole),
            await shown("summary", summary),
            await shown("recall", recall=105),
        ],
    }


for name, rows in asyncio.run(pictures()).items():
    print(name, *map(text_row, rows), sep="\n")
    for folder in sys.argv[1:]:
        Path(folder, name).write_text(svg(rows), encoding="utf-8")
