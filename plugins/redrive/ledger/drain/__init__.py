"""From a staging file to messages: batches, and what each copy is."""
