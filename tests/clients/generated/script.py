"""A client that is generated from /openapi.json, with openapi-python-client."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from checks import KEY, TEXTS, URL, check, close, embedding_of, main

folder = Path(tempfile.mkdtemp()) / "generated"
generator = Path(sys.executable).parent / "openapi-python-client"
command = [str(generator), "generate", "--meta=none", f"--url={URL}/openapi.json", f"--output-path={folder}"]
done = subprocess.run(command, capture_output=True, text=True, check=False)
sys.path.insert(0, str(folder.parent))


def module(name: str) -> object:
    return importlib.import_module(f"generated.{name}")


def client() -> object:
    return module("client").AuthenticatedClient(base_url=URL, token=KEY)


@check("every operation is generated")
def whole() -> None:
    assert done.returncode == 0, done.stderr
    with urllib.request.urlopen(f"{URL}/openapi.json", timeout=60) as answer:
        paths = json.load(answer)["paths"]
    names = {operation["operationId"] for methods in paths.values() for operation in methods.values()}
    assert names == {each.stem for each in (folder / "api").glob("*/*.py") if each.stem != "__init__"}


@check("an inference, and many in one call")
def inference() -> None:
    models = module("models")
    answer = module("api.bunch.infer").sync(client=client(), body=models.InferenceBody(input_=TEXTS[0], model="minilm"))
    assert close(answer.output, embedding_of(TEXTS[0]))
    assert answer.metadata.batch_size >= 1
    body = models.BulkBody(model="minilm", inputs=TEXTS)
    answer = module("api.bunch.infer_bulk").sync(client=client(), body=body)
    assert [close(each.output, embedding_of(text)) for each, text in zip(answer.results, TEXTS, strict=True)]


@check("the doors of others")
def doors() -> None:
    models = module("models")
    body = models.EmbeddingsBody(model="minilm", input_=TEXTS)
    answer = module("api.open_ai.create_embeddings").sync(client=client(), body=body)
    assert close(answer.data[0].embedding, embedding_of(TEXTS[0]))
    body = models.RerankBody(model="minilm", query="vegetables", documents=TEXTS)
    answer = module("api.cohere_and_jina.rerank").sync(client=client(), body=body)
    assert answer.results[0].index == 1


@check("an error has its type")
def error() -> None:
    models = module("models")
    body = models.InferenceBody(model="nothing", input_=1)
    assert module("api.bunch.infer").sync(client=client(), body=body).error == "UNKNOWN_MODEL"


main()
