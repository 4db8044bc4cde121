"""Workers and processes as Redis knows them, and the state that operators want them in."""
