"""Run by Python at the start of every process of a job under test, because this folder is on its PYTHONPATH."""

import injector

injector.install()
