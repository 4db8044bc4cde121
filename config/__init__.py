"""Settings, Redis names and connections: the only place that reads the environment and `bunch.toml`."""
