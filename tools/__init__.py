"""What only writes documentation."""
