"""Reranking in Cohere's and Jina's form: `POST /v1/rerank`.

query, n documents ─▶ n requests {"query", "text"}, batched with everybody else's ─▶ the best first
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Annotated, Any

import msgspec

from webapp.api.doors import RERANK
from webapp.api.doors.inputs import require_few
from webapp.api.doors.outputs import best_first, score, tokens_of, told_of
from webapp.api.running import MAX_REPEATED_BYTES, Asked, model_for, run_all
from webapp.errors import ApiError
from webapp.parsing import Milliseconds, as_json, read_body
from webapp.request import HttpRequest, HttpResponse
from webapp.services import Services


class Document(msgspec.Struct):
    """A document as an object; its other fields are ignored."""

    text: str


class RerankBody(msgspec.Struct):
    """The body of `POST /v1/rerank`."""

    query: str
    documents: Annotated[list[str | Document], msgspec.Meta(min_length=1)]
    model: str | None = None
    top_n: Annotated[int, msgspec.Meta(ge=1)] | None = None
    return_documents: bool | None = None
    parameters: dict[str, Any] | None = None
    timeout_ms: Milliseconds | None = None


_rerank = msgspec.json.Decoder(RerankBody)


def rerank(services: Services, call: HttpRequest) -> HttpResponse:
    """`POST /v1/rerank`."""
    started = perf_counter()
    body = read_body(call, _rerank, services.large)
    model = model_for(services, call, body.model, "rerank")
    require_few(len(body.documents), services.settings, "documents")
    documents = [each if isinstance(each, str) else each.text for each in body.documents]
    pairs = pairs_of(body.query, documents)
    asked = Asked(RERANK, model.name, pairs, "documents", started, body.parameters, body.timeout_ms)
    replies = run_all(services, call, asked)
    scores = [score(each, model.name) for each in replies]
    tokens = tokens_of([told_of(each) for each in replies])
    rows = [
        {"index": at, "relevance_score": scores[at]}
        | ({"document": {"text": documents[at]}} if body.return_documents else {})
        for at in best_first(scores)[: body.top_n]
    ]
    answer = {
        "id": call.request_id,
        "model": services.versions.full.get(model.name, model.name),
        "results": rows,
        "meta": {"api_version": {"version": "1"}, "billed_units": {"search_units": 1}},
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return HttpResponse(200, msgspec.json.encode(answer), call.request_id)


def pairs_of(query: str, documents: Sequence[str]) -> list[dict[str, str]]:
    """The inputs of a `rerank` model. Raises ApiError INVALID_INPUT for a query too long for so many documents."""
    if len(as_json(query)) * len(documents) > MAX_REPEATED_BYTES:
        most = MAX_REPEATED_BYTES // len(documents)
        raise ApiError("INVALID_INPUT", f"query: it is sent with each document; at most {most} bytes with this many")
    return [{"query": query, "text": each} for each in documents]
