"""What the DAG files are made of."""
