"""A program of threads, without a line of asyncio: every call has a `.get()`."""

from concurrent.futures import ThreadPoolExecutor

from keepwell import AgentSpec, FunctionModel, ModelRequest, Runtime, TextDelta, Window


def model(request: ModelRequest) -> str:
    """Stands in for a model."""
    return f"{request.messages[-1].text}? {len(request.messages)} messages so far."


with Runtime() as runtime, ThreadPoolExecutor(8) as threads:
    fleet = runtime.fleet(AgentSpec(FunctionModel(model), memory=Window(20)))

    def ask(n: int) -> str:
        return fleet.agent(f"user-{n % 4}").run(f"question {n}").get(timeout=30).text

    for answer in threads.map(ask, range(12)):
        print(answer)

    # Streams are plain iterators here.
    for event in fleet.agent("user-0").stream("and now"):
        if isinstance(event, TextDelta):
            print(event.text, end="")
    print()
