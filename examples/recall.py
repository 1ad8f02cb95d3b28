"""A conversation longer than its budget: what bears on the question is recalled from the log."""

import asyncio
import tempfile
from pathlib import Path

import keepwell


def answer(request: keepwell.ModelRequest) -> str:
    """Stands in for a model: knows of the dog what it is shown of it, and nothing else."""
    *shown, question = request.messages
    if "name of my dog" not in question.text:
        return "Noted."
    known = [message.text for message in shown if "Rex" in message.text]
    return f"You said: {known[0]}" if known else "You never told me."


async def main(folder: Path) -> None:
    async with keepwell.Runtime(folder / "data") as runtime:
        # The index lies beside the data. It can be deleted at any time: it is made again.
        retriever = keepwell.FullTextRetriever(runtime.store, folder / "recall")
        await runtime.start_child(retriever.child_spec())

        memory = keepwell.RecallProvider(
            runtime.store, retriever, max_tokens=120, count_tokens=keepwell.approx_token_count
        )
        spec = keepwell.AgentSpec(keepwell.FunctionModel(answer), memory=memory)
        agent = await runtime.spawn(spec, "ada")

        await agent.run("My dog is called Rex.")
        for town in range(40):
            await agent.run(f"The weather in town {town} is fine.")
        result = await agent.run("What is the name of my dog?")
        print(result.text)
        assert "Rex" in result.text

        *_, last = await runtime.store.read("ada", marks=True)
        (report,) = (last.mark or {})["context_report"]
        print(f"{report['kept']} messages shown, {report['elided']} left out,")
        print(f"{report['tokens']} of {report['max_tokens']} tokens, recalled:", report["recalled"])


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(Path(folder)))
