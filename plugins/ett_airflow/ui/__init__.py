"""What people see of ETT inside Airflow."""
