"""Why messages failed: from failure texts to causes and groups, the same way in Spark and on the command line."""
