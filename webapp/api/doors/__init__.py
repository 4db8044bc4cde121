"""The APIs of others, for clients that know them already: a module each, over `webapp.api.running`.

    bytes ──the door's body──▶ Submissions ──run_all──▶ Replies ──the door's answer──▶ bytes
      any error ──the door's row in `envelopes`──▶ its form and status, its cause unchanged

A door has no rule of its own: callers, tiers, limits, deadlines, idempotency and cancelling are as at /v1/inference.
The first column of `bunch_requests_total`'s label `door`: `bunch` is our own API, the others are named here.
"""

from __future__ import annotations

OPENAI = "openai"
RERANK = "rerank"
TEI = "tei"
KSERVE = "kserve"
GRPC = "grpc"
