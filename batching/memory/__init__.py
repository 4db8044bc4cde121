"""The queues, leases and answers of one process, in its own memory: what Redis' scripts do, without Redis."""
