"""Airflow's side of a refresh: operators, triggers, the ETT sensor, the UI, and the local stack."""
