"""Scenarios of a frontend process. `tests/gevent_runner.py` runs each in a process of its own, patched by gevent."""
