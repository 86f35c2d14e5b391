"""Does it add up? What the ledger tells, what it keeps, and what it forgets."""
