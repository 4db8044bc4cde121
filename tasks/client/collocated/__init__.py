"""The client of a frontend whose executors are in the same process: what `tasks/lua` does, without Redis."""
