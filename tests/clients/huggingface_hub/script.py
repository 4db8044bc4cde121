"""huggingface_hub's InferenceClient, by TEI's API."""

from __future__ import annotations

from checks import KEY, TEXTS, URL, check, close, embedding_of, main
from huggingface_hub import InferenceClient

client = InferenceClient(base_url=URL, token=KEY)


@check("feature_extraction")
def embeddings() -> None:
    found = client.feature_extraction(TEXTS[0])
    assert close(found.reshape(-1).tolist(), embedding_of(TEXTS[0]))


@check("feature_extraction with truncate")
def truncated() -> None:
    found = client.feature_extraction("word " * 400, truncate=True, normalize=True)
    assert found.size == 384


main()
