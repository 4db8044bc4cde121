"""In-memory twins of the ports, and models that misbehave on request."""
