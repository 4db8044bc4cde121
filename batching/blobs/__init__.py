"""Payloads that lie beside the queue: a message, lease or result has a reference in their place (ADR 0083)."""
