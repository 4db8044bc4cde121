"""The endpoints, one row each. docs/extending.md says how to add one."""

from __future__ import annotations

from typing import Any

from webapp.api import about, health, inference, openapi, reference, results
from webapp.api.binary_bodies import BINARY_OUTPUTS, METADATA_HEADER, OUTPUTS
from webapp.api.doors import openai, rerank, tei
from webapp.api.doors.envelopes import openai_error, rerank_error, tei_error
from webapp.api.kserve import routes as kserve
from webapp.api.openapi import answer, link, parameter
from webapp.identity.base import Access
from webapp.ops import views as ops
from webapp.parsing import BulkBody, InferenceBody, PredictBody, SimpleBody
from webapp.routing import Route

_FAILURES = (400, 404, 409, 413, 415, 422, 429, 500, 503, 504)
_TEI_FAILURES = (400, 409, 413, 415, 422, 424, 429, 500, 503, 504)

# Blanks at either end are not part of a field's value.
_KEY = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]([ -~]*[!-~])?$"}
_INFERENCE_HEADERS = (
    parameter("X-Timeout-Ms", "header", {"type": "number", "exclusiveMinimum": 0}, "the caller's deadline"),
    parameter("X-Request-Id", "header", {"type": "string"}, "the caller's own id"),
    parameter(
        "Cache-Control", "header", {"type": "string"}, "no-cache: compute the answer, do not reuse an earlier one"
    ),
    parameter(
        "Idempotency-Key",
        "header",
        _KEY,
        "a repeat of the same request gets the first one's outcome; a different request with this key gets 409",
    ),
)
_PREFER = parameter("Prefer", "header", {"type": "string"}, "respond-async: answer 202 once it is queued")
_CALLBACK_URL = parameter("Callback-URL", "header", {"type": "string"}, "callback_url, where the body is the input")
_SIGNATURE = "t=<unix seconds>,v1=<hex HMAC-SHA256 of <t>.<body> under the server's secret>"
_RESULT_PUSHED = {
    "result": {
        "{$request.body#/callback_url}": {
            "post": {
                "summary": "The outcome, once there is one; at least once.",
                "parameters": [parameter("Bunch-Signature", "header", {"type": "string"}, _SIGNATURE)],
                "requestBody": {"required": True, "content": answer("Result", "")["content"]},
                "responses": {"2XX": {"description": "Taken; anything else is tried again, for an hour."}},
            }
        }
    }
}
_ID = {"type": "string", "minLength": 1}
_TASK_ID = parameter("task_id", "path", _ID, "task id from the 202 answer")


def _links_to_result(task_id: str) -> dict[str, Any]:
    return {
        "result": link("get_result", "task_id", task_id, "The state, and the outcome once there is one."),
        "cancel": link("cancel_result", "task_id", task_id, "Cancel it, if it has not started."),
    }


ROUTES = (
    Route(
        *("POST", "/v1/inference", Access.TENANT, inference.infer),
        name="infer",
        summary="One input, its own output.",
        body=InferenceBody,
        binary=True,
        examples={"text": {"model": "minilm", "input": "A bunch of celery"}},
        answer="Inference",
        also=OUTPUTS,
        headers=METADATA_HEADER,
        errors=_FAILURES,
        parameters=(_PREFER, _CALLBACK_URL, *_INFERENCE_HEADERS),
        callbacks=_RESULT_PUSHED,
        links={"life": link("get_request", "request_id", "$response.body#/request_id", "The stages of the request.")},
        responses={
            "202": {
                **answer("Accepted", "Queued; poll the URL in Location."),
                "headers": {"Location": {"description": "URL of the result", "schema": {"type": "string"}}},
                "links": _links_to_result("$response.body#/task_id"),
            }
        },
        fast=True,
    ),
    Route(
        *("POST", "/v1/inference/bulk", Access.TENANT, inference.bulk),
        name="infer_bulk",
        summary="Many inputs, answers in order.",
        body=BulkBody,
        examples={"texts": {"model": "minilm", "inputs": ["A bunch of celery", "A market"]}},
        answer="Bulk",
        errors=(400, 404, 409, 413, 415, 429, 503),
        parameters=_INFERENCE_HEADERS,
    ),
    Route(
        *("POST", "/v1/predict", Access.TENANT, inference.predict),
        name="predict",
        summary="Like /v1/inference, with other field names.",
        body=PredictBody,
        examples={"text": {"model_id": "minilm", "input_data": "A bunch of celery"}},
        answer="Plain",
        also=OUTPUTS,
        headers=METADATA_HEADER,
        errors=_FAILURES,
        parameters=_INFERENCE_HEADERS,
        fast=True,
    ),
    Route(
        *("POST", "/api/inference", Access.TENANT, inference.simple),
        name="infer_text",
        summary="A string for the default model.",
        body=SimpleBody,
        examples={"text": {"input": "A bunch of celery"}},
        answer="Plain",
        also=OUTPUTS,
        headers=METADATA_HEADER,
        errors=_FAILURES,
        parameters=_INFERENCE_HEADERS,
        fast=True,
    ),
    Route(
        *("GET", "/v1/result/<task_id>", Access.TENANT, results.get_result),
        name="get_result",
        summary="State and outcome.",
        answer="Result",
        also={
            "text/event-stream": {"type": "string", "description": "events `status`, and `result` at the end"},
            **BINARY_OUTPUTS,
        },
        headers=METADATA_HEADER,
        errors=(400, 404, 503),
        parameters=(
            _TASK_ID,
            parameter("wait_ms", "query", {"type": "number", "minimum": 0}, "how long to wait for the result"),
            parameter("forget", "query", {"type": "boolean"}, "delete the outcome once it is returned"),
        ),
    ),
    Route(
        *("DELETE", "/v1/result/<task_id>", Access.TENANT, results.cancel_result),
        name="cancel_result",
        summary="Cancel a request that has not started.",
        answer="Cancelled",
        errors=(404, 409, 503),
        parameters=(_TASK_ID,),
    ),
    Route(
        *("GET", "/internal/requests/<request_id>", Access.EITHER, results.get_request),
        name="get_request",
        summary="The stages of one request.",
        answer="RequestLife",
        errors=(404, 503),
        parameters=(parameter("request_id", "path", _ID, "request or task id"),),
        links=_links_to_result("$response.body#/task_id"),
    ),
    Route(
        *("GET", "/", Access.PUBLIC, about.root),
        name="get_about",
        summary="About this service, with links.",
        answer="About",
        also={"text/html": {"type": "string"}},
    ),
    Route(
        *("POST", "/v1/embeddings", Access.TENANT, openai.embeddings),
        name="create_embeddings",
        summary="Embeddings, as OpenAI's API gives them.",
        body=openai.EmbeddingsBody,
        examples={"texts": {"model": "minilm", "input": ["A bunch of celery", "A market"]}},
        answer="Embeddings",
        errors=_FAILURES,
        parameters=_INFERENCE_HEADERS,
        fast=True,
        envelope=openai_error,
        tag="OpenAI",
    ),
    Route(
        *("GET", "/v1/models", Access.TENANT, openai.list_models),
        name="list_models",
        summary="The served models, with their tasks and the input of each.",
        answer="Models",
        envelope=openai_error,
        tag="OpenAI",
    ),
    Route(
        *("GET", "/v1/models/<model_id>", Access.TENANT, openai.get_model),
        name="get_model",
        summary="One served model.",
        answer="Model",
        errors=(404,),
        parameters=(parameter("model_id", "path", _ID, "name of the model"),),
        envelope=openai_error,
        tag="OpenAI",
    ),
    Route(
        *("POST", "/v1/rerank", Access.TENANT, rerank.rerank),
        name="rerank",
        summary="Documents by their relevance to a query, as Cohere's and Jina's APIs give them.",
        body=rerank.RerankBody,
        examples={"texts": {"query": "vegetables", "documents": ["A bunch of celery", "A bank"]}},
        answer="Ranking",
        errors=_FAILURES,
        parameters=_INFERENCE_HEADERS,
        fast=True,
        envelope=rerank_error,
        tag="Cohere and Jina",
    ),
    *(
        Route(
            *("POST", path, Access.TENANT, tei.embed),
            name=name,
            summary="Embeddings, as text-embeddings-inference gives them.",
            body=tei.EmbedBody,
            examples={"texts": {"inputs": ["A bunch of celery", "A market"]}},
            answer="Vectors",
            errors=_TEI_FAILURES,
            parameters=_INFERENCE_HEADERS,
            fast=True,
            envelope=tei_error,
            tag="text-embeddings-inference",
        )
        for path, name in (("/embed", "tei_embed"), ("/", "tei_embed_at_root"))
    ),
    Route(
        *("POST", "/rerank", Access.TENANT, tei.rerank),
        name="tei_rerank",
        summary="Texts by their relevance to a query, as text-embeddings-inference gives them.",
        body=tei.TeiRerankBody,
        examples={"texts": {"query": "vegetables", "texts": ["A bunch of celery", "A bank"]}},
        answer="Ranks",
        errors=_TEI_FAILURES,
        parameters=_INFERENCE_HEADERS,
        fast=True,
        envelope=tei_error,
        tag="text-embeddings-inference",
    ),
    Route(
        *("POST", "/predict", Access.TENANT, tei.predict),
        name="tei_predict",
        summary="Classes of a text, as text-embeddings-inference gives them.",
        body=tei.TeiPredictBody,
        examples={"text": {"inputs": "A bunch of celery"}},
        answer="Predictions",
        errors=_TEI_FAILURES,
        parameters=_INFERENCE_HEADERS,
        fast=True,
        envelope=tei_error,
        tag="text-embeddings-inference",
    ),
    Route(
        *("GET", "/info", Access.TENANT, tei.info),
        name="tei_info",
        summary="The model behind these paths.",
        answer={"type": "object", "additionalProperties": True},
        errors=(424,),
        envelope=tei_error,
        tag="text-embeddings-inference",
    ),
    Route(
        *("GET", "/health", Access.PUBLIC, tei.health),
        name="tei_health",
        summary="A model is served.",
        errors=(503,),
        responses={"200": {"description": "A model is served."}},
        envelope=tei_error,
        tag="text-embeddings-inference",
    ),
    Route(
        *("GET", "/internal/health", Access.OPERATOR, health.health),
        name="get_health",
        summary="Health of the service.",
        answer="Health",
        responses={"503": answer("Health", "No model is served.")},
    ),
    Route(
        *("GET", "/internal/scale", Access.OPERATOR, health.scale),
        name="get_scale",
        summary="The number of workers that the autoscaler wants.",
        answer="Scale",
        errors=(404, 503),
    ),
    Route(
        *("GET", "/healthz", Access.PUBLIC, health.alive),
        name="get_liveness",
        summary="The process is alive.",
        answer="Liveness",
        fast=True,
    ),
    Route(
        *("GET", "/readyz", Access.PUBLIC, health.ready),
        name="get_readiness",
        summary="Redis answers, and a model is served.",
        answer="Readiness",
        errors=(404, 503),
        parameters=(parameter("model", "query", {"type": "string"}, "check this model; without it, any model"),),
        fast=True,
    ),
    Route(
        *("GET", "/metrics", Access.OPERATOR, health.metrics),
        name="get_metrics",
        summary="Metrics, summed over all processes.",
        errors=(503,),
        responses={
            "200": {"description": "Prometheus text", "content": {"text/plain": {"schema": {"type": "string"}}}}
        },
    ),
    Route(
        *("GET", "/openapi.json", Access.PUBLIC, openapi.document),
        name="get_description",
        summary="This document.",
        answer="Description",
    ),
    Route("GET", "/docs", Access.PUBLIC, reference.page),
    Route("GET", "/docs/static/<name>", Access.PUBLIC, reference.asset),
    *kserve.ROUTES,
    # A browser loads the page itself without a credential; its data and actions are for operators only.
    Route("GET", "/ops", Access.PUBLIC, ops.page),
    Route("GET", "/ops/static/<name>", Access.PUBLIC, ops.asset),
    Route("GET", "/ops/events", Access.OPERATOR, ops.events),
    Route("GET", "/ops/explain/<name>", Access.OPERATOR, ops.explained),
    Route("POST", "/ops/actions/<name>", Access.OPERATOR, ops.act),
)
