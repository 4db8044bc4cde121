"""An HTTP/1.1 server over gevent sockets: limits, refusals, heads, bodies, responses, connections, listeners."""
