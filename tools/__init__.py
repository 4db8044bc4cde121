"""Programs that only write documentation."""
