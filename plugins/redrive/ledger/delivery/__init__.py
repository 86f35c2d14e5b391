"""What may be sent, what is being sent, and what became of it."""
