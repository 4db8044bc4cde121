"""Errors of the store.

StoreError
├── UnknownKey         no key has that id
└── StoreUnavailable   the database cannot be reached, or refused; its address, which may hold a password, is left out
"""

from __future__ import annotations


class StoreError(Exception):
    """Base class; takes positional arguments only."""


class UnknownKey(StoreError):
    """No key has that id."""


class StoreUnavailable(StoreError):
    """The database cannot be reached."""
