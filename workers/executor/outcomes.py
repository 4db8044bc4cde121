"""What a child process is told of a batch, and what it said, between the words of `batching`'s port and the frames'."""

from __future__ import annotations

from batching.claim.executor import Done, Work
from batching.request import Failed, Ok, Rejected
from workers.executor.ipc import ItemError, Ran, Run


def to_run(work: Work, *, may_end: bool, traced: bool) -> Run:
    """`traced`: the model asks somebody else, and goes on with a trace."""
    return Run(
        work.batch_id,
        list(work.inputs),
        list(work.parameters),
        work.safe_size,
        work.suspect,
        work.last_try,
        may_end,
        list(work.traceparents) if traced else [],
    )


def to_done(ran: Ran) -> Done:
    outcomes = [to_outcome(entry) for entry in ran.outcomes]
    for index, metadata in ran.metadata.items():
        each = outcomes[index]
        if isinstance(each, Ok):
            outcomes[index] = Ok(each.output, metadata)
    return Done(ran.batch_id, ran.compute_s, outcomes, ran.passes, ran.safe_size, ran.collapsed)


def to_outcome(entry: bytes | ItemError) -> Ok | Rejected | Failed:
    """One entry of a computed batch, as the port has it."""
    if isinstance(entry, bytes):
        return Ok(entry)
    if entry.rejected:
        return Rejected(entry.message, entry.exc_type)
    # Alone in its batch and still too large: another time there may be room.
    return Failed(
        entry.message,
        traceback=entry.traceback,
        retryable=entry.retryable or entry.out_of_memory,
        words=entry.words,
        public=entry.public,
    )
