"""The executor: a child process per model instance, with the parent's side and the child's."""
