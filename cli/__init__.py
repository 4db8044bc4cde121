"""The commands of `manage.py`, one file per group. Exit status 0: success; 1: a problem or a failure; 2: wrong
usage.
"""
