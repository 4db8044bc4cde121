"""`tune --auto`: its options, its run, its report."""
