"""The KServe SDK over REST."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
from checks import KEY, TEXTS, URL, check, close, embedding_of, main
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

HEADERS = {"Authorization": f"Bearer {KEY}"}


def call(steps: Callable[[InferenceRESTClient], Awaitable[None]]) -> None:
    async def whole() -> None:
        client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
        try:
            await steps(client)
        finally:
            await client.close()

    asyncio.run(whole())


@check("health and readiness")
def health() -> None:
    async def steps(client: InferenceRESTClient) -> None:
        assert await client.is_server_live(URL)
        assert await client.is_server_ready(URL)
        assert await client.is_model_ready(URL, "minilm", headers=HEADERS)

    call(steps)


@check("texts in, embeddings out, in JSON and in binary form")
def embeddings() -> None:
    async def steps(client: InferenceRESTClient) -> None:
        for binary in (False, True):
            texts = InferInput("input", [len(TEXTS)], "BYTES")
            texts.set_data_from_numpy(np.array(TEXTS, dtype=np.object_), binary_data=binary)
            asked = InferRequest("minilm", [texts], parameters={"binary_data_output": binary})
            answer = await client.infer(URL, asked, "minilm", headers=HEADERS)
            vectors = answer.outputs[0].as_numpy()
            assert vectors.dtype == np.float32
            assert vectors.shape == (len(TEXTS), 384)
            assert all(close(vector.tolist(), embedding_of(text)) for vector, text in zip(vectors, TEXTS, strict=True))

    call(steps)


@check("an unknown model is an error with its text")
def unknown() -> None:
    async def steps(client: InferenceRESTClient) -> None:
        texts = InferInput("input", [1], "BYTES", data=["a"])
        try:
            await client.infer(URL, InferRequest("nothing", [texts]), "nothing", headers=HEADERS)
        except Exception as error:
            if "404" not in str(error):
                raise
        else:
            raise AssertionError("not refused")

    call(steps)


main()
