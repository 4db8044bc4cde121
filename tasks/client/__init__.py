"""The client of a frontend process: submit a request, wait for its answer, take it back."""
