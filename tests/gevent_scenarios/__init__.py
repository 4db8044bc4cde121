"""What a frontend process does, each scenario in a process of its own that gevent has patched; `tests/scenes.py` plays
them.
"""
