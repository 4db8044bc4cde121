"""Workers and processes as Redis knows them, and what operators ask of them."""
