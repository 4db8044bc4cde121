"""A request whose caller waits in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gevent import get_hub, getcurrent


class Pending:
    """One pending request. `reply` is set once; None after that means that its time ran out.

    `wake` is called in the hub once `reply` is set, unless a greenlet is in `wait`.
    `is_sole`: set by the submitter; nobody else may ask for its result.
    `runs_on`: set by the submitter; the request is not cancelled even if nobody waits for it any more. `sent`: what it
    takes to send it again, from when a queue has it.
    """

    __slots__ = (
        *("channel", "deadline", "done", "due", "hung_up", "is_sole", "reply", "runs_on", "sent", "takes_bytes"),
        *("task_id", "wake"),
    )

    def __init__(
        self, task_id: str, deadline: float, channel: str = "", hung_up: Callable[[], bool] | None = None
    ) -> None:
        self.task_id = task_id
        self.hung_up = hung_up
        self.runs_on = False
        self.is_sole = False
        self.takes_bytes = False
        self.sent: Any = None
        self.deadline = deadline
        self.channel = channel
        # The time at which the router must look at it next.
        self.due = deadline
        self.reply: Any = None
        self.done = False
        self.wake: Callable[[], object] | None = None

    def wait(self) -> Any:
        """Block this greenlet until `settle`; the router settles everything by its deadline at the latest."""
        if not self.done:
            self.wake = getcurrent().switch
            try:
                while not self.done:
                    get_hub().switch()
            finally:
                self.wake = None
        return self.reply

    def settle(self, reply: Any) -> None:
        """Wake the waiting greenlet. Runs in the hub, or in the greenlet that waits."""
        if self.done:
            return
        self.reply = reply
        self.done = True
        if self.wake is not None:
            self.wake()
