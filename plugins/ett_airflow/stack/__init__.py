"""Airflow on one machine, for `make refresh`, `make up` and `make down`."""
