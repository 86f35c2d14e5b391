"""The ledger: every fact about every message, in one database, written under a lease."""
