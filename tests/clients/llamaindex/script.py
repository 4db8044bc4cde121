"""LlamaIndex: embeddings by OpenAI's API and by TEI's, and TEI's reranker."""

from __future__ import annotations

from checks import KEY, TEXTS, URL, check, close, embedding_of, main
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference as Reranker


@check("OpenAILikeEmbedding")
def openai_like() -> None:
    asked = OpenAILikeEmbedding(model_name="minilm", api_base=f"{URL}/v1", api_key=KEY, embed_batch_size=10)
    found = asked.get_text_embedding_batch(TEXTS)
    assert all(close(vector, embedding_of(text)) for vector, text in zip(found, TEXTS, strict=True))
    assert close(asked.get_query_embedding(TEXTS[0]), found[0])


@check("TextEmbeddingsInference")
def tei() -> None:
    asked = TextEmbeddingsInference(model_name="minilm", base_url=URL, auth_token=KEY, timeout=60)
    found = asked.get_text_embedding_batch(TEXTS)
    assert all(close(vector, embedding_of(text.strip())) for vector, text in zip(found, TEXTS, strict=True))


@check("TextEmbeddingInference, the reranker")
def reranker() -> None:
    # Its token is the whole of the field `Authorization`.
    asked = Reranker(model_name="minilm", base_url=URL, auth_token=f"Bearer {KEY}", top_n=2, timeout=60)
    nodes = [NodeWithScore(node=TextNode(text=each), score=0.0) for each in TEXTS]
    found = asked.postprocess_nodes(nodes, query_str="vegetables")
    assert [each.text for each in found] == [TEXTS[1], TEXTS[0]]


main()
