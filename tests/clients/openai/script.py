"""The OpenAI SDK: its defaults, its errors and its retries."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import openai
from checks import KEY, LIMITED, TEXTS, URL, check, close, embedding_of, main, unpacked

sent: list[object] = []
client = openai.OpenAI(
    base_url=f"{URL}/v1",
    api_key=KEY,
    http_client=openai.DefaultHttpxClient(event_hooks={"request": [sent.append]}),
)


@check("embeddings, base64 by default, as our own API gives them")
def default() -> None:
    answer = client.embeddings.create(model="minilm", input=TEXTS)
    assert [each.index for each in answer.data] == [0, 1, 2]
    assert b'"base64"' in sent[-1].content
    assert all(close(each.embedding, embedding_of(text)) for each, text in zip(answer.data, TEXTS, strict=True))
    assert answer.model == "minilm"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens > 3 * 3


@check("float and base64 are equal")
def formats() -> None:
    floats = client.embeddings.create(model="minilm", input=TEXTS[0], encoding_format="float").data[0].embedding
    packed = client.embeddings.create(model="minilm", input=TEXTS[0], encoding_format="base64").data[0].embedding
    assert isinstance(packed, str)
    assert close(floats, unpacked(packed), 1e-7)


@check("async, 50 calls at once")
def at_once() -> None:
    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY) as asked:
            texts = [f"text number {n}" for n in range(50)]
            answers = await asyncio.gather(*[asked.embeddings.create(model="minilm", input=each) for each in texts])
            for text, answer in list(zip(texts, answers, strict=True))[::10]:
                assert close(answer.data[0].embedding, embedding_of(text))

    asyncio.run(ask())


@check("dimensions and token arrays, where the model has them")
def options() -> None:
    answer = client.embeddings.create(model="fake", input=[[3, 6], [9, 12, 15]], dimensions=3)
    assert [each.embedding for each in answer.data] == [close_to([2, 3, 6]), close_to([3, 9, 12])]
    assert answer.usage.prompt_tokens == 5
    for body in ({"input": [1, 2]}, {"input": "a", "dimensions": 5}):
        try:
            client.embeddings.create(model="minilm", **body)
        except openai.BadRequestError as error:
            assert error.param in {"input", "dimensions"}, error.param
        else:
            raise AssertionError(body)


def close_to(numbers: list[float]) -> object:
    class Close:
        def __eq__(self, other: object) -> bool:
            return close(other, [each / 3 for each in numbers])

        __hash__ = None

    return Close()


@check("models")
def models() -> None:
    found = [each.id for each in client.models.list()]
    assert found[0] == "minilm"
    assert client.models.retrieve("fake").id == "fake"
    try:
        client.models.retrieve("nothing")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"


@check("errors have OpenAI's types, and are not retried in vain")
def errors() -> None:
    def tries(kind: type[openai.APIStatusError], code: str, asked: openai.OpenAI = client, **body: object) -> int:
        sent.clear()
        try:
            asked.embeddings.create(**{"model": "minilm", "input": "a", **body})
        except kind as error:
            assert error.code == code, error.code
            assert error.request_id
            return len(sent)
        raise AssertionError(kind)

    assert tries(openai.NotFoundError, "model_not_found", model="text-embedding-3-small") == 1
    assert tries(openai.BadRequestError, "invalid_input", input=["fine", ""]) == 1
    assert tries(openai.UnprocessableEntityError, "input_rejected", input=["fine", "word " * 400]) == 1
    assert tries(openai.AuthenticationError, "invalid_api_key", client.with_options(api_key="wrong")) == 1
    headers = {"Idempotency-Key": "one key"}
    client.embeddings.create(model="minilm", input="one", extra_headers=headers)
    # Without `x-should-retry` the SDK repeats any 409 and 5xx twice.
    assert tries(openai.ConflictError, "idempotency_conflict", input="two", extra_headers=headers) == 1
    assert (
        tries(openai.InternalServerError, "deadline_exceeded", model="slow", extra_headers={"X-Timeout-Ms": "1"}) == 1
    )


@check("429 is retried when the key may ask again")
def limited() -> None:
    asked = client.with_options(api_key=LIMITED, max_retries=5)
    answers = [asked.embeddings.with_raw_response.create(model="minilm", input=f"limited {n}") for n in range(4)]
    assert any(each.retries_taken for each in answers)
    try:
        for n in range(4):
            asked.with_options(max_retries=0).embeddings.create(model="minilm", input=f"at once {n}")
    except openai.RateLimitError as error:
        assert error.code == "rate_limit_exceeded"
        assert int(error.response.headers["retry-after-ms"]) > 0
    else:
        raise AssertionError("never limited")


@check("503 is retried until the queue has room")
def overloaded() -> None:
    def ask(retries: int, n: int) -> int:
        asked = client.with_options(max_retries=retries)
        return asked.embeddings.with_raw_response.create(model="narrow", input=f"{retries} {n}").retries_taken

    with ThreadPoolExecutor(6) as pool:
        taken = list(pool.map(lambda n: ask(20, n), range(6)))
        assert max(taken) > 0, taken
        futures = [pool.submit(ask, 0, n) for n in range(6)]
        refused = [each.exception() for each in futures if each.exception()]
    assert refused
    assert all(isinstance(each, openai.InternalServerError) and each.status_code == 503 for each in refused), refused


@check("our own fields by extra_body: truncation is asked for, and told")
def truncation() -> None:
    answer = client.embeddings.create(
        model="minilm", input=["word " * 400, "short"], extra_body={"parameters": {"truncate": True}}
    )
    assert [getattr(each, "truncated", False) for each in answer.data] == [True, False]


main()
