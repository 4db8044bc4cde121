"""A BERT encoder in plain torch, for batches of mixed length. Imported only by a model's `load`.

Compared with `sentence_transformers` and `transformers` it starts in a third of the time and runs a batch about twice
as fast. The reason is padding: the tokens of all sequences are stored one after another ("packed"), so that the linear
layers, nearly all of the work, never see padding. Only attention, which needs rows of equal length, is padded.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file
from torch import Tensor


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weight and bias of each step; `qkv` joins query, key and value, one multiplication instead of three."""

    qkv: tuple[Tensor, Tensor]
    attended: tuple[Tensor, Tensor]
    attended_norm: tuple[Tensor, Tensor]
    wide: tuple[Tensor, Tensor]
    narrow: tuple[Tensor, Tensor]
    narrow_norm: tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class _Shape:
    """The positions of the tokens of a batch of n sequences, packed (t rows) and padded (n rows of `width`)."""

    count: int
    width: int
    lengths: Tensor
    positions: Tensor
    # From packed to padded; padding repeats a row's last token and is masked. None when there is no padding.
    spread: Tensor | None
    packed: Tensor | None
    mask: Tensor | None


class BertEncoder:
    """The weights of one model folder (`config.json`, `model.safetensors`) on one device."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        weights = load_file(folder / "model.safetensors", device=str(device))
        self._device = device
        self._heads: int = config["num_attention_heads"]
        self._width: int = config["hidden_size"]
        self._eps: float = config["layer_norm_eps"]
        self.max_positions: int = config["max_position_embeddings"]
        self._words = weights["embeddings.word_embeddings.weight"]
        # Every token here is in the first segment, so its vector can be added to those of the positions.
        self._positions = (
            weights["embeddings.position_embeddings.weight"] + weights["embeddings.token_type_embeddings.weight"][0]
        )
        self._norm = _pair(weights, "embeddings.LayerNorm")
        self._layers = [_layer(weights, f"encoder.layer.{n}") for n in range(config["num_hidden_layers"])]

    @torch.inference_mode()
    def embed(self, sequences: list[list[int]], unscaled: Sequence[int] = ()) -> Tensor:
        """Embed token ids. Returns the mean of each sequence's tokens, normalised to length 1 (n × hidden size); the
        rows `unscaled` keep their length.
        """
        shape = self._shape([len(sequence) for sequence in sequences])
        ids = torch.tensor([token for sequence in sequences for token in sequence], device=self._device)
        x = self._normed(F.embedding(ids, self._words) + F.embedding(shape.positions, self._positions), self._norm)
        for layer in self._layers:
            x = self._normed(x + F.linear(self._attend(x, layer, shape), *layer.attended), layer.attended_norm)
            x = self._normed(x + F.linear(F.gelu(F.linear(x, *layer.wide)), *layer.narrow), layer.narrow_norm)
        rows = torch.repeat_interleave(torch.arange(shape.count, device=self._device), shape.lengths)
        means = x.new_zeros(shape.count, self._width).index_add_(0, rows, x) / shape.lengths[:, None]
        vectors = F.normalize(means, dim=1)
        if unscaled:
            kept = self._put(torch.tensor(unscaled))
            vectors[kept] = means[kept]
        return vectors

    def _attend(self, x: Tensor, layer: _Layer, shape: _Shape) -> Tensor:
        qkv = F.linear(x, *layer.qkv)
        if shape.spread is not None:
            qkv = qkv.index_select(0, shape.spread)
        q, k, v = qkv.view(shape.count, shape.width, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=shape.mask)
        attended = attended.transpose(1, 2).reshape(shape.count * shape.width, self._width)
        return attended if shape.packed is None else attended.index_select(0, shape.packed)

    def _normed(self, x: Tensor, norm: tuple[Tensor, Tensor]) -> Tensor:
        return F.layer_norm(x, (self._width,), *norm, eps=self._eps)

    def _shape(self, sizes: list[int]) -> _Shape:
        count, width = len(sizes), max(sizes)
        lengths = torch.tensor(sizes)
        columns = torch.arange(width).expand(count, width)
        if min(sizes) == width:
            return _Shape(count, width, self._put(lengths), self._put(columns.reshape(-1)), None, None, None)
        real = columns < lengths[:, None]
        starts = lengths.cumsum(0) - lengths
        spread = starts[:, None] + torch.minimum(columns, lengths[:, None] - 1)
        mask = torch.zeros(count, 1, 1, width).masked_fill_(~real[:, None, None, :], float("-inf"))
        return _Shape(
            count,
            width,
            self._put(lengths),
            self._put(columns[real]),
            self._put(spread.reshape(-1)),
            self._put(real.reshape(-1).nonzero().squeeze(1)),
            self._put(mask),
        )

    def _put(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device)


def _pair(weights: dict[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]


def _layer(weights: dict[str, Tensor], name: str) -> _Layer:
    parts = [_pair(weights, f"{name}.attention.self.{part}") for part in ("query", "key", "value")]
    return _Layer(
        qkv=(torch.cat([weight for weight, _ in parts]), torch.cat([bias for _, bias in parts])),
        attended=_pair(weights, f"{name}.attention.output.dense"),
        attended_norm=_pair(weights, f"{name}.attention.output.LayerNorm"),
        wide=_pair(weights, f"{name}.intermediate.dense"),
        narrow=_pair(weights, f"{name}.output.dense"),
        narrow_norm=_pair(weights, f"{name}.output.LayerNorm"),
    )
