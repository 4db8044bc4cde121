"""The version of Bunch, as `pyproject.toml` has it too; a test holds the two together."""

VERSION = "0.1.0"
