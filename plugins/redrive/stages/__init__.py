"""The steps of a run, each from durable input to recorded output."""
