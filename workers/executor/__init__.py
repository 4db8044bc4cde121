"""The executor: a child process per model instance, the parent's side and the child's."""
