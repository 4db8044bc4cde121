"""Files beside `bunch.toml`: a model's source, its schemas, its import path."""
