"""The review page: what failed, why, and people's decisions, served inside Airflow.

A small FastAPI application, rendered on the server. It reads the ledger and writes nothing but decisions, as any
reviewer does in SQL.
"""
