"""What a failed call shows: an exception's text, a device fault, a process that is no good any more."""
