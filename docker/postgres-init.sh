#!/usr/bin/env bash
# Runs once, when the volume is empty: one database and one user each for Airflow's metadata, for the ledger,
# and for the shop that stands in for your consumer's database. Passwords come from the environment.
set -euo pipefail

database() {
    # psql quotes names and passwords itself; nothing of them is pasted into SQL.
    psql -v ON_ERROR_STOP=1 -v name="$1" -v password="$2" --username "$POSTGRES_USER" --dbname postgres <<'SQL'
create role :"name" login password :'password';
create database :"name" owner :"name";
revoke all on database :"name" from public;
SQL
}

database airflow "$AIRFLOW_DATABASE_PASSWORD"
database ledger "$REDRIVE_DATABASE_PASSWORD"
database shop "$SHOP_DATABASE_PASSWORD"

# The ledger's user may create no roles; `redrive db upgrade` gives this one its rights. grant redrive_reviewer to ana;
psql -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres --command 'create role redrive_reviewer nologin'

# What the processed_check of config/redrive.yaml asks.
PGPASSWORD="$SHOP_DATABASE_PASSWORD" psql -v ON_ERROR_STOP=1 --username shop --dbname shop \
    --command 'create table processed (message_id text primary key, processed_at timestamptz not null default now())'
