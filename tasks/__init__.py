"""The contract between web and worker: messages, results, and the client that submits and waits."""
