"""HTTP/1.1 over a socket, in parts: limits, refusals, heads, bodies, responses, connections, listeners."""
