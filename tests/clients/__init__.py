"""Clients of other APIs against a running stack, each in an environment of its own: `make clients`.

A folder per client: what it installs, and what is checked with it. The table of docs/clients.md comes from here.
"""
