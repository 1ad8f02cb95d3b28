"""A chat service in Starlette: answers are streamed, and a lost connection is taken up again.

    uvicorn examples.starlette_app:app
    curl -N -X PUT localhost:8000/conversations/ada/turns/1 -d "Tell me about owls."

The client names the turn. After a disconnect, a restart of the service, or a crash, it sends the
same request again, with the id of the last event it got as `Last-Event-ID`: the turn is not asked
twice, and the rest of the answer comes.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from keepwell import AgentSpec, FunctionModel, ModelRequest, RequestError, Runtime, Window, service


async def model(request: ModelRequest) -> str:
    """Stands in for a model."""
    await asyncio.sleep(0.1)
    return f"You said: {request.messages[-1].text} I see {len(request.messages)} messages."


spec = AgentSpec(FunctionModel(model), memory=Window(50))
runtime_of_service = service.lifespan(lambda: Runtime(os.environ.get("DATA_DIR", "./data")))


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with runtime_of_service(app):
        app.state.fleet = app.state.runtime.fleet(spec)
        await app.state.fleet.recover()  # turns that the last process left unfinished go on
        yield


async def turn(request: Request) -> Response:
    question = (await request.body()).decode()
    if not question.strip():
        return JSONResponse({"error": "the body is the question"}, status_code=400)
    agent = request.app.state.fleet.agent(request.path_params["conversation"])
    stream = agent.stream(question, turn_id=request.path_params["turn"])
    frames = service.event_frames(stream, request.headers.get("last-event-id"))
    return StreamingResponse(frames, media_type="text/event-stream")


async def messages(request: Request) -> Response:
    agent = request.app.state.fleet.agent(request.path_params["conversation"])
    return JSONResponse([message.to_dict() for message in await agent.messages()])


async def clear(request: Request) -> Response:
    await request.app.state.fleet.agent(request.path_params["conversation"]).clear()
    return Response(status_code=204)


async def live(request: Request) -> Response:
    return Response(status_code=200 if request.app.state.runtime.health().live else 503)


async def ready(request: Request) -> Response:
    health = request.app.state.runtime.health()
    return JSONResponse(list(health.reasons), status_code=200 if health.ready else 503)


async def refused(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, status_code=400)


app = Starlette(
    routes=[
        Route("/conversations/{conversation}/turns/{turn}", turn, methods=["PUT"]),
        Route("/conversations/{conversation}/messages", messages),
        Route("/conversations/{conversation}", clear, methods=["DELETE"]),
        Route("/live", live),
        Route("/ready", ready),
    ],
    exception_handlers={RequestError: refused},
    lifespan=lifespan,
)

if __name__ == "__main__":
    # Streams get 20 seconds to end after SIGTERM; then the runtime drains.
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")), timeout_graceful_shutdown=20)
