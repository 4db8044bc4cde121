"""What outlives Redis: accounts, their keys, and the ledger of requests, in SQLite or PostgreSQL.

No request waits for it: `manage.py` and the ops worker are the only ones that open it.
"""
