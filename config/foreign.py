"""Names in the environment that are not settings of ours, however much they look like it."""

from __future__ import annotations

import re

# What Kubernetes tells each container of a Service `bunch`, or `bunch-…`, in its namespace: kubelet's
# `envvars.FromServices`, and Docker's links before it.
_BY_NAME = re.compile(r"BUNCH_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_LINK = re.compile(r"(tcp|udp|sctp)://", re.IGNORECASE)


def made_by_kubernetes(name: str, value: str) -> bool:
    """Whether a Service's name made this, and nobody set it.

    `BUNCH_HTTP_PORT` may be either: of a Service `bunch-http` it is a URL, which no port is.
    """
    return bool(_BY_NAME.fullmatch(name) or ("_PORT" in name and _LINK.match(value)))
