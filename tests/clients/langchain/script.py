"""LangChain's OpenAI embeddings, with texts and with token arrays, which it sends by default."""

from __future__ import annotations

import tiktoken
from checks import KEY, TEXTS, URL, check, close, embedding_of, main
from langchain_openai import OpenAIEmbeddings


def bytes_as_tokens(name: str) -> tiktoken.Encoding:
    """An encoding with a token for each byte: tiktoken's own are downloaded."""
    ranks = {bytes([each]): each for each in range(256)}
    return tiktoken.Encoding(name, pat_str=r"(?s).", mergeable_ranks=ranks, special_tokens={})


def embeddings(model: str, **options: object) -> OpenAIEmbeddings:
    return OpenAIEmbeddings(model=model, base_url=f"{URL}/v1", api_key=KEY, **options)


@check("texts, with check_embedding_ctx_length=False")
def texts() -> None:
    asked = embeddings("minilm", check_embedding_ctx_length=False)
    found = asked.embed_documents(TEXTS)
    assert all(close(vector, embedding_of(text)) for vector, text in zip(found, TEXTS, strict=True))
    assert close(asked.embed_query(TEXTS[0]), found[0])


@check("token arrays, for a model that accepts_tokens")
def tokens() -> None:
    tiktoken.get_encoding = bytes_as_tokens
    tiktoken.encoding_for_model = bytes_as_tokens
    (found,) = embeddings("fake").embed_documents(["abc"])
    assert len(found) == 8
    # Each number is that of a token; the first is their number.
    assert close([each / found[0] for each in found[:4]], [1, 97 / 3, 98 / 3, 99 / 3], 1e-4)


@check("token arrays for another model: the error says what to set")
def refused() -> None:
    tiktoken.get_encoding = bytes_as_tokens
    tiktoken.encoding_for_model = bytes_as_tokens
    try:
        embeddings("minilm").embed_documents(["abc"])
    except Exception as error:  # noqa: BLE001 - of whichever class
        assert "check_embedding_ctx_length=False" in str(error)
    else:
        raise AssertionError("not refused")


main()
