"""The commands of `manage.py`, one file a group. Exit 0: it is well; 1: it is bad or failed; 2: wrong use."""
