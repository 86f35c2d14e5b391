"""How the Spark job is started, and what its session is told."""
