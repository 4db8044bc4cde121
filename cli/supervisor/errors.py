"""Errors that keep a stack from starting.

SupervisorError
├── AlreadyRunning   another `up` holds this state folder
├── NotRunning       there is no `up` to ask
├── FolderFull       the file system of the state folder has no room
├── PortTaken        something else listens where the stack would
└── StartFailed      a process died again and again, or a model did not load
"""

from __future__ import annotations


class SupervisorError(Exception):
    """Base class; its text is shown to a person."""


class AlreadyRunning(SupervisorError):
    """One `up` per state folder: two would write each other's queues and logs."""


class NotRunning(SupervisorError):
    """Nothing was started from this state folder."""


class FolderFull(SupervisorError):
    """The file system is full: found before the start, or by a write that failed, and then everything is stopped
    again.
    """


class PortTaken(SupervisorError):
    """The port is in use; found before anything is started."""


class StartFailed(SupervisorError):
    """The stack did not start, and was stopped again."""
