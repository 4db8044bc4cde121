"""The data that outlives Redis: accounts, their keys and the ledger of requests, in SQLite or PostgreSQL.

Only `manage.py` and the ops worker open the database, so no request waits for it.
"""
