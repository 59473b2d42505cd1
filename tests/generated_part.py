"""The part of a page of the docs that a program writes, between two marks."""

from __future__ import annotations


def into(document: str, text: str, *, begin: str, end: str) -> str:
    """`document` with what stands between its marks replaced.

    Raises:
        ValueError: the marks are not there.
    """
    before, found_begin, rest = document.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise ValueError(f"the page has no place for the results; write the lines {begin!r} and {end!r} into it")
    return f"{before}{begin}\n{text}\n{end}{after}"
