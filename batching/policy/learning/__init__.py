"""What is measured on the way: arrivals, the time of a batch, throughput by size."""
