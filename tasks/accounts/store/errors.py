"""What can go wrong with the store.

StoreError
├── UnknownKey         no key of that id
└── StoreUnavailable   the database cannot be reached, or refused; without its address, which may hold a password
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of all; positional arguments only."""


class UnknownKey(StoreError):
    """There is no key of that id."""


class StoreUnavailable(StoreError):
    """The database cannot be reached."""
