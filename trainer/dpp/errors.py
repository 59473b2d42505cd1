"""What can be wrong with data: one hierarchy, each error naming the file or field and what to do next."""

from __future__ import annotations


class DppError(Exception):
    """Base of every error of the data preprocessing pipeline."""


class ContractError(DppError):
    """The spec's contract does not fit what it is used for."""


class SourceError(DppError):
    """A data source that cannot be fetched or read."""


class LandingError(DppError):
    """A day that cannot be landed, or a data root that landing cannot use."""


class PlanError(DppError):
    """A read plan that cannot be used, or a file that is no longer the one that was planned."""


class CursorError(DppError):
    """Intervals that overlap or lie outside the plan: rows would be read twice, or not at all."""


class ReaderError(DppError):
    """A file that failed while it was being read; names the file, row group and cause."""
