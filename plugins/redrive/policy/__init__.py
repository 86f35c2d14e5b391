"""What happens to a message, and how fast: pure decisions over values, without ledger, broker or clock."""
