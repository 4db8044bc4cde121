"""The ops worker: plain tasks, the sync with the database, its bootsteps."""
