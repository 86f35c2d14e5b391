"""What waits for people, and what they decided."""
