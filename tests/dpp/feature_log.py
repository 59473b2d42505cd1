"""The extent of the feature log that the tests share."""

from __future__ import annotations

from datetime import date

NEWEST = date(2026, 11, 28)
DAYS = 5
ROWS_PER_DAY = 400
