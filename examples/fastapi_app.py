"""The same service in FastAPI: typed bodies, and refusals as the HTTP answers they amount to.

uvicorn examples.fastapi_app:app
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

import keepwell
from keepwell import service


async def model(request: keepwell.ModelRequest) -> str:
    """Stands in for a model."""
    await asyncio.sleep(0.1)
    return f"You said: {request.messages[-1].text} I see {len(request.messages)} messages."


spec = keepwell.AgentSpec(keepwell.FunctionModel(model), memory=keepwell.Window(50))
runtime_of_service = service.lifespan(
    lambda: keepwell.Runtime(os.environ.get("DATA_DIR", "./data"))
)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with runtime_of_service(app):
        app.state.fleet = app.state.runtime.fleet(spec)
        await app.state.fleet.recover()
        yield


app = FastAPI(title="Chat", lifespan=lifespan)


class Question(BaseModel):
    text: str = Field(min_length=1)


@app.put("/conversations/{conversation}/turns/{turn}", response_class=StreamingResponse)
async def put_turn(
    conversation: str,
    turn: str,
    question: Question,
    request: Request,
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamingResponse:
    """Ask, or take up the answer after Last-Event-ID."""
    stream = request.app.state.fleet.agent(conversation).stream(question.text, turn_id=turn)
    frames = service.event_frames(stream, last_event_id)
    return StreamingResponse(frames, media_type="text/event-stream")


@app.get("/conversations/{conversation}/messages")
async def get_messages(conversation: str, request: Request) -> list[dict[str, Any]]:
    messages = await request.app.state.fleet.agent(conversation).messages()
    return [dict(message.to_dict()) for message in messages]


@app.get("/live")
async def live(request: Request) -> JSONResponse:
    return JSONResponse(None, status_code=200 if request.app.state.runtime.health().live else 503)


@app.get("/ready")
async def ready(request: Request) -> JSONResponse:
    health = request.app.state.runtime.health()
    return JSONResponse(list(health.reasons), status_code=200 if health.ready else 503)


@app.exception_handler(keepwell.RequestError)
async def bad_request(_: Request, error: keepwell.RequestError) -> JSONResponse:
    return JSONResponse({"error": str(error)}, status_code=400)


@app.exception_handler(keepwell.Unavailable)
async def unavailable(_: Request, error: keepwell.Unavailable) -> JSONResponse:
    return JSONResponse({"error": str(error)}, status_code=503, headers={"Retry-After": "1"})


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")), timeout_graceful_shutdown=20)
