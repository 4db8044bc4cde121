"""What an outcome is beyond its own request's: the answer to a question that others may ask (`tasks.once`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Asked:
    """One outcome as the answer to its question.

    `keep_ms` is for how long to keep it for those who ask later, 0 if it is not to be kept. Their results are the first
    `head` bytes of this one's, up to the task id, a task id and times of their own, and `to_later`.
    """

    question: str
    model: str
    keep_ms: int
    head: int
    to_later: bytes

    def row(self) -> tuple[object, ...]:
        """As `lua/asked.lua` takes it, behind the position in the lease."""
        return (self.question, self.keep_ms, self.head, self.to_later)
