"""The example of a model for images, with its real weights: it reads what is written in a picture."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import pytest

from bunch import InputRejected, InvalidInput

pytest.importorskip("onnxruntime", reason="needs requirements-ocr.txt")
pytest.importorskip("rapidocr", reason="needs requirements-ocr.txt")

from PIL import Image, ImageDraw, ImageFont

from workers.models.textline import TextLine


def picture(text: str, form: str = "PNG", size: tuple[int, int] = (420, 60), mode: str = "RGB") -> bytes:
    image = Image.new(mode, size, "white")
    ImageDraw.Draw(image).text((10, 8), text, fill="black", font=ImageFont.load_default(36))
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


@pytest.fixture(scope="module")
def model() -> TextLine:
    model = TextLine(threads=1)
    model.load("cpu")
    model.warmup()
    return model


def run(model: TextLine, *inputs: bytes) -> list[Any]:
    """As an executor calls it: what `prepare` refuses does not reach `predict`."""
    staged = model.prepare(list(inputs), [{}] * len(inputs))
    kept = [each for each in staged if not isinstance(each, Exception)]
    read = iter(model.finish(model.predict(kept, [{}] * len(kept))) if kept else [])
    return [each if isinstance(each, Exception) else next(read) for each in staged]


def test_it_reads_lines_of_any_width_in_one_batch(model: TextLine) -> None:
    texts = ["A bunch of celery", "42", "Batch me"]
    pictures = [picture(texts[0]), picture(texts[1], "JPEG", (120, 60)), picture(texts[2], "PNG", (260, 60), "L")]
    read = run(model, *pictures)
    assert [each["text"] for each in read] == texts
    assert all(0.8 < each["confidence"] <= 1 for each in read)
    assert run(model, picture(" "))[0] == {"text": "", "confidence": 0.0}


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header claims so many pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"", InvalidInput),
        (b"no picture", InvalidInput),
        (picture("cut")[:200], InvalidInput),
        (picture("cut")[:-100], InvalidInput),
        (picture("a gif", "GIF"), InvalidInput),
        (bomb(100_000, 100_000), InputRejected),
        (bomb(2_000_000, 1), InputRejected),
        (bomb(1000, 1000), InvalidInput),
    ],
)
def test_what_it_cannot_read_is_refused_alone(model: TextLine, raw: bytes, kind: type[Exception]) -> None:
    refused, read = run(model, raw, picture("good"))
    assert type(refused) is kind
    assert read["text"] == "good"
