"""A worker without a web server: jobs in, answers out, SIGTERM lets the running ones finish.

The id of a job is the id of its turn: a job that is delivered twice is done once, and one that a
killed worker left unfinished is taken up where it was.
"""

import asyncio
import tempfile

from keepwell import AgentSpec, Fleet, FunctionModel, ModelRequest, Runtime, service

Job = tuple[str, str, str]
"""Its id, the conversation, the text."""


async def model(request: ModelRequest) -> str:
    """Stands in for a model."""
    await asyncio.sleep(0.01)
    return request.messages[-1].text.upper()


async def work(jobs: asyncio.Queue[Job], fleet: Fleet, answers: dict[str, str]) -> None:
    while True:
        job_id, conversation, text = await jobs.get()
        try:
            result = await fleet.agent(conversation).run(text, turn_id=job_id)
            answers[job_id] = result.text  # here: acknowledge the job to whoever sent it
        finally:
            jobs.task_done()


async def main(data_dir: str) -> None:
    jobs: asyncio.Queue[Job] = asyncio.Queue()
    answers: dict[str, str] = {}
    async with Runtime(data_dir) as runtime, service.serving(runtime) as running:
        fleet = runtime.fleet(AgentSpec(FunctionModel(model)), max_active=100)
        await fleet.recover()
        workers = [asyncio.create_task(work(jobs, fleet, answers)) for _ in range(8)]
        for n in range(40):
            job = (f"job-{n}", f"customer-{n % 10}", f"message {n}")
            jobs.put_nowait(job)
            if n % 5 == 0:
                jobs.put_nowait(job)  # delivered twice, as queues do
        await jobs.join()
        running.stop()  # a worker that is never done leaves this to SIGTERM
        await running.wait()
        for worker in workers:
            worker.cancel()
        stored = await fleet.agent("customer-5").messages()
        print(len(answers), "answers;", [message.text for message in stored])
        assert len(stored) == 8


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(folder))
