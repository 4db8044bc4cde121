"""Cohere's SDK, reranking."""

from __future__ import annotations

import cohere
from checks import KEY, TEXTS, URL, check, main

client = cohere.Client(base_url=URL, api_key=KEY)


@check("rerank")
def rerank() -> None:
    answer = client.rerank(model="minilm", query="vegetables", documents=TEXTS, top_n=2, return_documents=True)
    assert [each.index for each in answer.results] == [1, 0]
    assert answer.results[0].document.text == TEXTS[1]
    assert answer.results[0].relevance_score > answer.results[1].relevance_score > 0


@check("an unknown model is a NotFoundError")
def unknown() -> None:
    try:
        client.rerank(model="rerank-v3.5", query="vegetables", documents=TEXTS)
    except cohere.NotFoundError as error:
        assert "there is no model" in str(error.body)
    else:
        raise AssertionError("not refused")


main()
