"""Everything that needs a real GPU to be believed, in one command: `python -m tests.gpu`, or `make gpu`.

    device   the GPUs of this machine, or stand-ins for a rehearsal
    models   what runs in the executors; the only module that calls CUDA
    rig      a stack with those models: a real Redis, frontend, worker, and executors
    checks   a function each, which yields the rows of the table

`--rehearse` runs the same on a machine without a GPU: the device is `cpu`, faults of the device are raised by hand with
torch's own classes, and the driver is a fake one.
"""
