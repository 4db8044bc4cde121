"""Reads a line of text in a picture: an image in, its text out. An example of a model whose inputs are bytes.

    PNG, JPEG, WebP ──prepare──▶ 48 pixels high, padded to the widest ──predict──▶ characters at each place
                                         {"text": …, "confidence": …} ◀──finish──┘

The network is PP-OCRv6's recogniser (Apache-2.0), an ONNX file of the PyPI package `rapidocr`; nothing is downloaded.
It reads one line: a page needs a detector before it. `pip install 'bunch[ocr]'` brings what it needs, and in
bunch.toml it has `input_type = "bytes"`.
"""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bunch import InputRejected, InvalidInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Pixels = NDArray[np.float32]

_PACKAGE, _FILE = "rapidocr", "PP-OCRv6_rec_small.onnx"
_HEIGHT = 48
# What the decoder of an image may cost: its header tells before anything is unpacked.
_MOST_PIXELS = 4_000_000
_FORMATS = ("PNG", "JPEG", "WEBP")
# Of a line: longer ones are cut out of something else, and would widen the whole batch.
_MOST_WIDTHS = 40
# The widths of a batch are multiples of this, so that the network meets few different shapes.
_WIDTH_STEP = 160
_BLANK = 0


class _Read(NamedTuple):
    """The most likely character at each place of each line, and how likely it is."""

    characters: NDArray[np.int64]
    likely: Pixels


class TextLine:
    """Refuses, each on its own: what is no PNG, JPEG or WebP, pictures of more than four megapixels, and those that are
    40 times as wide as high.

    Args:
        threads: CPU threads of one batch; 0: as onnxruntime likes.
    """

    description = "PP-OCRv6's recogniser: the text in a picture of one line"

    def __init__(self, threads: int = 0) -> None:
        self._threads = threads
        self._session: Any = None
        self._characters: list[str] = []

    def load(self, device: str) -> None:
        import onnxruntime

        spec = find_spec(_PACKAGE)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"No module named {_PACKAGE!r}", name=_PACKAGE)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        wanted = ["CUDAExecutionProvider"] if device.startswith("cuda") else []
        usable = [each for each in wanted if each in onnxruntime.get_available_providers()]
        self._session = onnxruntime.InferenceSession(
            str(Path(spec.origin).parent / "models" / _FILE), options, providers=[*usable, "CPUExecutionProvider"]
        )
        listed = self._session.get_modelmeta().custom_metadata_map["character"].splitlines()
        self._characters = ["", *listed, " "]

    def warmup(self) -> None:
        """Run one batch, since the first one is slow."""
        import numpy as np

        self.predict(np.zeros((1, 3, _HEIGHT, 2 * _WIDTH_STEP), np.float32), [])

    def prepare(self, inputs: list[bytes], parameters: list[dict[str, Any]]) -> list[Any]:
        """The pixels of each image, or its refusal; a thread of its own does this while the network runs."""
        return [_pixels(each) for each in inputs]

    def predict(self, staged: list[Pixels] | Pixels, parameters: list[dict[str, Any]]) -> _Read:
        (probabilities,) = self._session.run(None, {self._session.get_inputs()[0].name: _padded(staged)})
        return _Read(probabilities.argmax(axis=2), probabilities.max(axis=2))

    def finish(self, raw: _Read) -> list[dict[str, Any]]:
        return [self._text(*each) for each in zip(raw.characters, raw.likely, strict=True)]

    def _text(self, characters: NDArray[np.int64], likely: Pixels) -> dict[str, Any]:
        """A character that goes on over several places is one; a blank between two makes them two."""
        begins = characters != _BLANK
        begins[1:] &= characters[1:] != characters[:-1]
        text = "".join(self._characters[each] for each in characters[begins])
        return {"text": text, "confidence": round(float(likely[begins].mean()), 4) if text else 0.0}


def _pixels(raw: bytes) -> Pixels | Exception:
    """Three planes from -1 to 1, blue first, as the network was trained."""
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(raw), formats=_FORMATS) as image:
            width, height = image.size
            if width * height > _MOST_PIXELS:
                return InputRejected(f"the picture has {width} x {height} pixels; at most {_MOST_PIXELS} are read")
            if width > _MOST_WIDTHS * height:
                return InputRejected(f"the picture is more than {_MOST_WIDTHS} times as wide as high; cut it")
            line = image.convert("RGB").resize((max(1, round(width * _HEIGHT / height)), _HEIGHT))
    except UnidentifiedImageError:
        return InvalidInput(f"the input is no picture in one of {', '.join(_FORMATS)}")
    except Image.DecompressionBombError as error:
        return InputRejected(str(error))
    except (OSError, ValueError, SyntaxError) as error:
        return InvalidInput(f"the picture cannot be read: {error}")
    return np.asarray(line, np.float32)[:, :, ::-1].transpose(2, 0, 1) / np.float32(127.5) - 1


def _padded(lines: list[Pixels] | Pixels) -> Pixels:
    """One array for all lines, filled up with grey on the right."""
    import numpy as np

    if not isinstance(lines, list):
        return lines
    widest = -(-max(each.shape[2] for each in lines) // _WIDTH_STEP) * _WIDTH_STEP
    whole = np.zeros((len(lines), 3, _HEIGHT, widest), np.float32)
    for row, each in zip(whole, lines, strict=True):
        row[:, :, : each.shape[2]] = each
    return whole
