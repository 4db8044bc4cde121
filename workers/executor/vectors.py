"""Vectors as base64 of little-endian float32: half the bytes of their JSON numbers, and nobody parses them again.

A request to an `embed` model asks for it with `"encoding_format": "base64"` in its parameters, as the doors of other
APIs do (`webapp.api.doors`). The model does not see that parameter.
"""

from __future__ import annotations

import base64
import math
import sys
from array import array
from typing import Any

from bunch import Output

_FIELD = "encoding_format"
_FORMAT = "base64"


def takes_format(parameters: dict[str, Any]) -> bool:
    """Take the format out of a request's parameters; True if it asks for packed vectors."""
    if parameters.get(_FIELD) != _FORMAT:
        return False
    del parameters[_FIELD]
    return True


def packed(output: Any) -> Any:
    """The vector in an output as base64. What is not one, or not finite, stays as it is, and is refused or encoded
    like any other output.

    Raises whatever an array's own code raises.
    """
    if isinstance(output, Output):
        return Output(packed(output.value), output.metadata)
    to_list = getattr(output, "tolist", None)
    values = to_list() if callable(to_list) else output
    if not isinstance(values, list):
        return output
    try:
        floats = array("f", values)
    except TypeError:
        return output
    # A double that no float32 can hold becomes infinite.
    if not math.isfinite(sum(floats)):
        return output
    if sys.byteorder == "big":
        floats.byteswap()
    return base64.b64encode(floats).decode()
