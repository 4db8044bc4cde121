"""The forms in which servers of models are called: a row for each, which makes calls of a batch and reads the answers.

    source = "tei:https://host"      inputs, parameters ──calls──▶ bodies ──POST──▶ answers ──outputs──▶ one each
             └ adapter └ address

A batch is one call, unless its requests differ in what one call can say only once. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import msgspec

Call: TypeAlias = tuple[list[int], Any]
_Inputs: TypeAlias = Sequence[Any]
_Parameters: TypeAlias = Sequence[dict[str, Any]]


class BadAnswer(ValueError):
    """An answer is not of the adapter's form."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One form.

    Args:
        path: where the API is, if the address has only a host; `{model}` is the name of the model there.
        calls: the members and the body of each call, for the inputs, parameters and the name of the model there.
        outputs: the outputs in an answer, for so many inputs. Raises BadAnswer, or what comes of a wrong form
            (KeyError, IndexError, TypeError).
        answers: what an answer looks like, for an error message.
    """

    path: str
    calls: Callable[[_Inputs, _Parameters, str], Iterator[Call]]
    outputs: Callable[[Any, int], list[Any]]
    answers: str

    def address(self, url: str, model: str) -> str:
        """The URL that is called: one without a path gets that of the form."""
        parts = urlsplit(url)
        if parts.path.strip("/") or not self.path:
            return url
        return urlunsplit(parts._replace(path=self.path.format(model=model)))


def adapter_of(source: str) -> tuple[Adapter | None, str]:
    """The adapter and the address of a source; None for our own form."""
    name, _, url = source.partition(":")
    if name not in KINDS:
        return None, source
    last = urlsplit(url).path.rstrip("/").rpartition("/")[2]
    return KINDS[name].get(last) or KINDS[name][""], url


def _alike(inputs: _Inputs, parameters: _Parameters) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """The members with equal parameters, in the order of their first."""
    groups: dict[bytes, list[int]] = {}
    for index, each in enumerate(parameters):
        groups.setdefault(msgspec.json.encode(each, order="deterministic"), []).append(index)
    for members in groups.values():
        yield members, parameters[members[0]]


def _openai(inputs: _Inputs, parameters: _Parameters, model: str) -> Iterator[Call]:
    for members, shared in _alike(inputs, parameters):
        yield members, {"encoding_format": "float", **shared, "model": model, "input": [inputs[i] for i in members]}


def _openai_outputs(answer: Any, size: int) -> list[Any]:
    return [each["embedding"] for each in sorted(answer["data"], key=lambda each: each["index"])]


def _tei(inputs: _Inputs, parameters: _Parameters, model: str) -> Iterator[Call]:
    for members, shared in _alike(inputs, parameters):
        yield members, {**shared, "inputs": [inputs[i] for i in members]}


def _tei_predict(inputs: _Inputs, parameters: _Parameters, model: str) -> Iterator[Call]:
    # A list of texts would be one text pair.
    for members, shared in _alike(inputs, parameters):
        yield members, {**shared, "inputs": [each if isinstance(each := inputs[i], list) else [each] for i in members]}


def _tei_rerank(inputs: _Inputs, parameters: _Parameters, model: str) -> Iterator[Call]:
    with_query = [{**shared, "query": _item(each, "query")} for each, shared in zip(inputs, parameters, strict=True)]
    for members, shared in _alike(inputs, with_query):
        yield members, {**shared, "texts": [_item(inputs[i], "text") for i in members]}


def _item(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None


def _ranked(answer: Any, size: int) -> list[Any]:
    return [each["score"] for each in sorted(answer, key=lambda each: each["index"])]


def _listed(answer: Any, size: int) -> list[Any]:
    if not isinstance(answer, list):
        raise BadAnswer("it is no list")
    return answer


def _kserve(inputs: _Inputs, parameters: _Parameters, model: str) -> Iterator[Call]:
    for members, shared in _alike(inputs, parameters):
        mine = [inputs[i] for i in members]
        # Rows of several tensors are dicts by their names; of one, the values themselves.
        names = list(mine[0]) if isinstance(mine[0], Mapping) else None
        tensors = (
            [_tensor("input", mine)]
            if names is None
            else [_tensor(name, [_item(each, name) for each in mine]) for name in names]
        )
        yield members, {"inputs": tensors} | ({"parameters": shared} if shared else {})


def _tensor(name: str, rows: list[Any]) -> dict[str, Any]:
    shape, flat = [len(rows)], list(rows)
    while flat and isinstance(flat[0], list):
        shape.append(len(flat[0]))
        flat = [each for row in flat for each in (row if isinstance(row, list) else [row])]
    datatype = "BYTES"
    if flat and all(isinstance(each, bool) for each in flat):
        datatype = "BOOL"
    elif flat and all(isinstance(each, int) for each in flat):
        datatype = "INT64"
    elif flat and all(isinstance(each, int | float) for each in flat):
        datatype = "FP32"
    return {"name": name, "shape": shape, "datatype": datatype, "data": flat}


def _kserve_outputs(answer: Any, size: int) -> list[Any]:
    tensors = {each["name"]: _rows(each, size) for each in answer["outputs"]}
    if len(tensors) == 1:
        return next(iter(tensors.values()))
    return [dict(zip(tensors, row, strict=True)) for row in zip(*tensors.values(), strict=True)]


def _rows(tensor: Mapping[str, Any], size: int) -> list[Any]:
    first, *rest = tensor["shape"]
    data = tensor["data"]
    if first != size:
        raise BadAnswer(f"the output {tensor['name']} has {first} rows for {size} inputs")
    # Servers may nest the data themselves.
    is_flat = not isinstance(data[0], list)
    if len(data) != (math.prod(tensor["shape"]) if is_flat else size):
        raise BadAnswer(f"the output {tensor['name']} has not as much data as its shape says")
    # From the innermost dimension outwards; a row is what is left of all but the first.
    for length in reversed(rest) if is_flat else ():
        data = [data[at : at + length] for at in range(0, len(data), length)]
    return list(data)


_OPENAI = Adapter("/v1/embeddings", _openai, _openai_outputs, '{"data": [{"index": 0, "embedding": [...]}]}')
_TEI = Adapter("/embed", _tei, _listed, "a list with an entry for each input")
# By the last part of the address' path; "" for any other.
KINDS: dict[str, dict[str, Adapter]] = {
    "openai": {"": _OPENAI},
    "tei": {
        "": _TEI,
        "predict": Adapter("/predict", _tei_predict, _listed, _TEI.answers),
        "rerank": Adapter("/rerank", _tei_rerank, _ranked, 'a list of {"index": 0, "score": 0.5}'),
    },
    "kserve": {"": Adapter("/v2/models/{model}/infer", _kserve, _kserve_outputs, '{"outputs": [tensors of n rows]}')},
}
