"""Haystack's OpenAI embedders."""

from __future__ import annotations

from checks import KEY, TEXTS, URL, check, close, embedding_of, main
from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.utils import Secret

OPTIONS = {"model": "minilm", "api_base_url": f"{URL}/v1", "api_key": Secret.from_token(KEY)}


@check("OpenAITextEmbedder")
def text() -> None:
    found = OpenAITextEmbedder(**OPTIONS).run(text=TEXTS[0])
    assert close(found["embedding"], embedding_of(TEXTS[0]))
    assert found["meta"]["usage"]["total_tokens"] > 3


@check("OpenAIDocumentEmbedder")
def documents() -> None:
    found = OpenAIDocumentEmbedder(**OPTIONS).run(documents=[Document(content=each) for each in TEXTS])
    assert all(close(each.embedding, embedding_of(each.content)) for each in found["documents"])


main()
