"""Triton's Python backend: one call per batch, one response per request."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from stand_in import load


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.model = load()

    def execute(self, requests: list[Any]) -> list[Any]:
        # Clients send one string per request, so a request is one row of the batch.
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()[0, 0] for request in requests]
        outputs = self.model.predict(inputs)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([[output]], dtype=np.object_))])
            for output in outputs
        ]
