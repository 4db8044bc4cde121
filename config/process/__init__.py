"""What the operating system gives a process: descriptors, memory, streams, devices."""
