"""The API of text-embeddings-inference (TEI): one model per task, the default one if it has the task.

POST /embed, POST /   {"inputs"}                a list of vectors, also for one input
POST /rerank          {"query", "texts"}        [{"index", "score"}], the best first
POST /predict         {"inputs"}                [{"label", "score"}], or a list of them for a batch
GET /info, /health
"""

from __future__ import annotations

from time import perf_counter
from typing import Annotated, Any

import msgspec

from config.version import VERSION
from tasks.errors import InferenceFailed
from tasks.protocol.results import Reply
from webapp.api.doors import TEI
from webapp.api.doors.inputs import Dimensions, Text, require_few, texts, with_dimensions
from webapp.api.doors.outputs import best_first, score, vector
from webapp.api.doors.rerank import pairs_of
from webapp.api.health import ready
from webapp.api.running import Asked, model_for, run_all
from webapp.errors import ApiError
from webapp.model_tasks import TASKS, Served
from webapp.parsing import read_body
from webapp.request import HttpRequest, HttpResponse
from webapp.services import Services

_TOO_MANY = "PAYLOAD_TOO_LARGE"
_encode = msgspec.json.Encoder().encode


# No enumeration: generators of clients give `left` and `Left` one name.
Direction = Annotated[str, msgspec.Meta(pattern="^([Ll]eft|[Rr]ight)$")]


class EmbedBody(msgspec.Struct):
    """The body of `POST /embed`."""

    inputs: Text
    truncate: bool | None = None
    truncation_direction: Direction | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    dimensions: Dimensions | None = None


class TeiRerankBody(msgspec.Struct):
    """The body of `POST /rerank`."""

    query: str
    texts: Annotated[list[str], msgspec.Meta(min_length=1)]
    truncate: bool | None = None
    truncation_direction: Direction | None = None
    raw_scores: bool | None = None
    return_text: bool | None = None


_PAIR = 2
TextOrPair = Annotated[list[str], msgspec.Meta(min_length=1, max_length=_PAIR)]


class TeiPredictBody(msgspec.Struct):
    """The body of `POST /predict`: a text, a pair of texts, or a list of lists of one or two texts."""

    inputs: str | Annotated[list[str | TextOrPair], msgspec.Meta(min_length=1)]
    truncate: bool | None = None
    truncation_direction: Direction | None = None
    raw_scores: bool | None = None


class Prediction(msgspec.Struct):
    """One class of a `classify` model's output."""

    score: float
    label: str


_embed = msgspec.json.Decoder(EmbedBody)
_rerank = msgspec.json.Decoder(TeiRerankBody)
_predict = msgspec.json.Decoder(TeiPredictBody)
_by_label = msgspec.json.Decoder(dict[str, float]).decode
_predictions = msgspec.json.Decoder(list[Prediction]).decode


def embed(services: Services, call: HttpRequest) -> HttpResponse:
    """`POST /embed` and `POST /`."""
    started = perf_counter()
    body = read_body(call, _embed, services.large)
    model = model_for(services, call, None, "embed")
    if body.prompt_name is not None:
        raise ApiError("INVALID_INPUT", f"prompt_name: {model.name} has no prompts; leave it out")
    inputs = texts(body.inputs, "inputs", model)
    require_few(len(inputs), services.settings, "inputs", _TOO_MANY)
    asked = _truncation(body) | ({"normalize": False} if body.normalize is False else {})
    parameters = with_dimensions(asked, body.dimensions, model)
    replies = run_all(services, call, Asked(TEI, model.name, inputs, "inputs", started, parameters))
    return HttpResponse(200, b"[%b]" % b",".join(vector(each, model.name) for each in replies), call.request_id)


def rerank(services: Services, call: HttpRequest) -> HttpResponse:
    """`POST /rerank`."""
    started = perf_counter()
    body = read_body(call, _rerank, services.large)
    model = model_for(services, call, None, "rerank")
    require_few(len(body.texts), services.settings, "texts", _TOO_MANY)
    parameters = _truncation(body) | ({"raw_scores": True} if body.raw_scores else {})
    pairs = pairs_of(body.query, body.texts)
    replies = run_all(services, call, Asked(TEI, model.name, pairs, "texts", started, parameters))
    scores = [score(each, model.name) for each in replies]
    rows = [
        {"index": at, **({"text": body.texts[at]} if body.return_text else {}), "score": scores[at]}
        for at in best_first(scores)
    ]
    return HttpResponse(200, _encode(rows), call.request_id)


def predict(services: Services, call: HttpRequest) -> HttpResponse:
    """`POST /predict`: a model for it gets a text, or a list of two, and returns `{label: score}` or predictions."""
    started = perf_counter()
    body = read_body(call, _predict, services.large)
    model = model_for(services, call, None, "classify")
    batch, sequences = _sequences(body.inputs)
    require_few(len(sequences), services.settings, "inputs", _TOO_MANY)
    parameters = _truncation(body) | ({"raw_scores": True} if body.raw_scores else {})
    inputs = [each[0] if len(each) == 1 else each for each in sequences]
    replies = run_all(services, call, Asked(TEI, model.name, inputs, "inputs", started, parameters))
    rows = [_predicted(each, model) for each in replies]
    return HttpResponse(200, _encode(rows if batch else rows[0]), call.request_id)


def info(services: Services, call: HttpRequest) -> HttpResponse:
    """`GET /info`: the model of `POST /embed`, else that of another task."""
    model = next((each for task in TASKS for each in services.tasks if task in each.tasks), None)
    if model is None:
        model = services.tasks.serving(TASKS[0])
    settings = services.settings
    own = settings.models[model.name]
    document = {
        "model_id": model.name,
        "model_sha": None,
        "model_dtype": "float32",
        "model_type": _MODEL_TYPES[model.tasks[0]],
        "max_concurrent_requests": own.max_queue_depth,
        "max_input_length": model.max_input_length or settings.max_body_bytes,
        "max_batch_tokens": own.max_batch_cost or own.max_batch_bytes,
        "max_batch_requests": own.max_batch_size,
        "max_client_batch_size": settings.max_bulk_items,
        "auto_truncate": False,
        "tokenization_workers": own.instances,
        "version": VERSION,
    }
    return HttpResponse(200, _encode(document), call.request_id)


# The model's own affair are how it pools, and the names of its classes.
_MODEL_TYPES: dict[str, Any] = {
    "embed": {"embedding": {"pooling": "mean"}},
    "rerank": {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}},
    "classify": {"classifier": {"id2label": {}, "label2id": {}}},
}


def health(services: Services, call: HttpRequest) -> HttpResponse:
    """`GET /health`: as /readyz, without a body."""
    ready(services, call)
    return HttpResponse(200, b"", call.request_id)


def _sequences(given: str | list[str | list[str]]) -> tuple[bool, list[list[str]]]:
    """True for a batch, and its sequences, of one or two texts each. Raises ApiError INVALID_INPUT."""
    if isinstance(given, str):
        return False, [[given]]
    pair = [each for each in given if isinstance(each, str)]
    batch = [each for each in given if isinstance(each, list)]
    if not pair:
        return True, batch
    if batch or len(pair) > _PAIR:
        raise ApiError("INVALID_INPUT", "inputs: a text, a pair of texts, or a list of lists of one or two texts")
    return False, [pair]


def _truncation(body: EmbedBody | TeiRerankBody | TeiPredictBody) -> dict[str, Any]:
    """The parameters that cut a text that is too long; none where the caller leaves it."""
    if not body.truncate:
        return {}
    return {
        "truncate": True,
        **({"truncation_direction": "left"} if (body.truncation_direction or "").lower() == "left" else {}),
    }


def _predicted(reply: Reply, model: Served) -> list[Prediction]:
    """The classes of one input, the most likely first. Raises InferenceFailed."""
    try:
        found = [Prediction(score, label) for label, score in _by_label(reply.result).items()]
    except msgspec.MsgspecError:
        try:
            found = _predictions(reply.result)
        except msgspec.MsgspecError:
            wanted = '{label: score} or [{"label", "score"}]'
            raise InferenceFailed(
                f"{model.name} has the task classify; it must return {wanted} for each input"
            ) from None
    return sorted(found, key=lambda each: -each.score)
