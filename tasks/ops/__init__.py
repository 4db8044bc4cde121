"""The ops worker: plain tasks, the periodic sync with the database, bootsteps."""
