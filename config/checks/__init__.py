"""Checks of the settings: the text of `bunch.toml`, foreign names, contradictions, cautions."""
