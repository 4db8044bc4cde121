"""What keeps a stack from starting.

SupervisorError
├── AlreadyRunning   another `up` holds this state folder
├── NotRunning       there is no `up` to ask
├── FolderFull       the file system of the state folder has no room
├── PortTaken        something else listens where the stack would
└── StartFailed      a process died again and again, or a model did not load
"""

from __future__ import annotations


class SupervisorError(Exception):
    """Base; its text is what a person is shown."""


class AlreadyRunning(SupervisorError):
    """One `up` per state folder: two would write each other's queues and logs."""


class NotRunning(SupervisorError):
    """Nothing was started from this state folder."""


class FolderFull(SupervisorError):
    """Found before anything is started, or by the write that failed; then everything is stopped again."""


class PortTaken(SupervisorError):
    """Found before anything is started."""


class StartFailed(SupervisorError):
    """The stack was stopped again."""
