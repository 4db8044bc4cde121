"""LiteLLM, as a client of OpenAI's API and of Jina's reranking."""

from __future__ import annotations

import litellm
from checks import KEY, TEXTS, URL, check, close, embedding_of, main


@check("embedding, as openai/…")
def embeddings() -> None:
    answer = litellm.embedding(model="openai/minilm", input=TEXTS, api_base=f"{URL}/v1", api_key=KEY)
    assert all(close(each["embedding"], embedding_of(text)) for each, text in zip(answer.data, TEXTS, strict=True))
    assert answer.usage.prompt_tokens > 3


@check("rerank, as jina_ai/…")
def rerank() -> None:
    answer = litellm.rerank(
        model="jina_ai/minilm", query="vegetables", documents=TEXTS, top_n=2, api_base=f"{URL}/v1/rerank", api_key=KEY
    )
    assert [each["index"] for each in answer.results] == [1, 0]


main()
