"""The OpenAI routes: models, completions, chat completions, tokenize."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from kvops.errors import InvalidRequest
from kvops.models.tokenizer import Tokenizer
from kvops.node.admission import Work
from kvops.node.api.answers import Answer
from kvops.node.api.audited import accepted
from kvops.node.api.jsonbody import JsonRoute
from kvops.node.api.prepare import (
    Prepared,
    Terms,
    prepare_chat,
    prepare_completion,
)
from kvops.node.api.replies import Replies
from kvops.node.api.schemas import ChatRequest, CompletionRequest, Sampling, TokenizeRequest
from kvops.node.api.shapes import ChatShape, CompletionShape, Shape
from kvops.node.auth import Caller
from kvops.node.services import Services
from kvops.node.wire import EngineInfo

router = APIRouter(prefix="/v1", route_class=JsonRoute)


async def _services(request: Request) -> Services:
    # A plain function would cross a thread pool with every request.
    services: Services = request.app.state.services
    return services


Node = Annotated[Services, Depends(_services)]


@router.get("/models")
async def models(node: Node) -> dict[str, Any]:
    info, _ = node.serving()
    model = {
        "id": node.model_name,
        "object": "model",
        "created": int(node.started_at),
        "owned_by": "kvops",
        "max_model_len": info.max_model_len,
    }
    return {"object": "list", "data": [model]}


@router.post("/completions", response_model=None)
async def completions(body: CompletionRequest, request: Request, node: Node) -> Response:
    info, reader = node.serving()
    node.check_model(body.model)
    prepared = await prepare_completion(body, _terms(request, node, info), reader)
    shape = CompletionShape(
        f"cmpl-{_hex(request)}", body.model, reader.tokenizer,
        logprobs=body.logprobs is not None, usage_field=_wants_usage(body),
    )  # fmt: skip
    return await _answer(request, node, body, prepared, shape, reader.tokenizer)


@router.post("/chat/completions", response_model=None)
async def chat_completions(body: ChatRequest, request: Request, node: Node) -> Response:
    info, reader = node.serving()
    node.check_model(body.model)
    prepared = await prepare_chat(body, _terms(request, node, info), reader)
    shape = ChatShape(
        f"chatcmpl-{_hex(request)}", body.model, reader.tokenizer,
        logprobs=bool(body.logprobs), usage_field=_wants_usage(body),
    )  # fmt: skip
    return await _answer(request, node, body, prepared, shape, reader.tokenizer)


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, node: Node) -> dict[str, Any]:
    info, reader = node.serving()
    if body.model is not None:
        node.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("send either prompt or messages.", param="prompt")
    if body.messages is not None:
        tokens = await reader.chat(body.messages)
    else:
        tokens = await reader.completion(body.prompt or "", info.spec.vocab_size)
    return {"count": len(tokens), "max_model_len": info.max_model_len, "tokens": tokens}


async def _answer(
    request: Request,
    node: Services,
    body: Sampling,
    prepared: Prepared,
    shape: Shape,
    tokenizer: Tokenizer,
) -> Response:
    caller: Caller = request.state.caller
    work = Work(
        request_id=request.state.request_id,
        tenant=caller.tenant,
        salt=node.salts.of(caller.tenant),
        priority=node.priority_of(caller.tenant, body.priority),
        prompts=prepared.prompts,
        n=body.n or 1,
        received_at=request.state.received_at,
        stops=tuple(body.stop),
    )
    generation = node.admission.admit(work)
    request.state.admitted = True
    accepted(request, node.audit, generation)
    replies = Replies(generation, tokenizer, body.stop, body.min_tokens or 0)
    answer = Answer(generation, replies, shape, prepared.removed)
    if body.stream:
        return await answer.stream(request, include_usage=_wants_usage(body))
    return await answer.whole(request)


def _terms(request: Request, node: Services, info: EngineInfo) -> Terms:
    caller: Caller = request.state.caller
    return Terms(node.loaded.config, info, caller.tenant)


def _wants_usage(body: Sampling) -> bool:
    return bool(body.stream_options and body.stream_options.include_usage)


def _hex(request: Request) -> str:
    return str(request.state.request_id).removeprefix("req-")
