"""The version of Bunch. `pyproject.toml` has it too; a test keeps the two equal."""

VERSION = "0.1.0"
