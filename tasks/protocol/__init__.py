"""Requests and results on the wire, and which of a message's claims are trusted."""
