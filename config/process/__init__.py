"""Operating system resources of a process: descriptors, memory, streams, devices."""
