"""Which days a run trains on, and from which anchor: the rules, free of side effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum

from ett_airflow.anchors import Anchor
from trainer.spec import Purpose, RefreshSpec, RunType, Window

ONE_DAY = timedelta(days=1)


class Warm(StrEnum):
    """What Param `warm_start` may say besides a run's id."""

    AUTO = "auto"
    NONE = "none"


class WindowError(ValueError):
    """A run whose data window or warm start cannot be decided; the message says what to change."""


class NothingToTrainError(WindowError):
    """Every day that has landed is trained already."""


@dataclass(frozen=True, kw_only=True)
class WindowRequest:
    """What the run says about its window.

    Attributes:
        interval: the data interval of a scheduled or backfilled run; other runs may have none, or a meaningless one.
        window_start, window_end, days: the Params of those names, `window_end` exclusive.
        warm_start: `auto`, `none`, or the id of the run whose anchor to start from.
    """

    run_type: RunType
    purpose: Purpose = Purpose.DAILY
    interval: tuple[datetime, datetime] | None = None
    window_start: date | None = None
    window_end: date | None = None
    days: int | None = None
    warm_start: str = Warm.AUTO

    @property
    def names_days(self) -> bool:
        """Whether a person said which days."""
        return not (self.window_start is None and self.window_end is None and self.days is None)


@dataclass(frozen=True)
class Decision:
    """The window of a run and the anchor that it starts from, if any."""

    window: Window
    anchor: Anchor | None


def decide(
    spec: RefreshSpec, request: WindowRequest, *, anchors: Sequence[Anchor], landed: Sequence[date], today: date
) -> Decision:
    """The window and warm start of one run.

    In this order: the Params; the data interval of a scheduled or backfilled run; for all others the first
    landed day that no anchor covers, or for tuning the newest landed one. A run that has nothing to start from takes
    `data.first_window_days`. `anchors` are sorted, the best of those that end on one day last.

    Raises:
        WindowError: contradictory Params, or a warm start that does not exist or has seen the window.
        NothingToTrainError: no landed day is left.
    """
    fitting = _candidates(spec, request, anchors)
    newest_landed = landed[-1] if landed else today - ONE_DAY
    if request.names_days:
        named = _named_days(request, newest_landed)
        return Decision(named, _newest_before(named.start, fitting, request))
    days = _own_days(request, newest_landed)
    if days is None:
        return _next_untrained(spec, fitting, landed=landed, newest_landed=newest_landed)
    anchor = _newest_before(days.start, fitting, request)
    return Decision(days if anchor else _first_window(spec, days.end), anchor)


def _named_days(request: WindowRequest, newest_landed: date) -> Window:
    """What the Params say. `days` fills in for the bound that is not given; alone it means the newest days."""
    start, end, days = request.window_start, request.window_end, request.days
    if start is None and days is None:
        raise WindowError(f"window_end {end} without window_start; give both, or days, or neither")
    if start is None:
        end = end or newest_landed + ONE_DAY
        start = end - timedelta(days=days or 1)
    end = end or start + timedelta(days=days or 1)
    if end <= start:
        raise WindowError(f"window_end {end} must be after window_start {start}: it is exclusive")
    if days is not None and (end - start).days != days:
        raise WindowError(f"window_start {start} to window_end {end} are {(end - start).days} days, days says {days}")
    return Window(start=start, end=end)


def _own_days(request: WindowRequest, newest_landed: date) -> Window | None:
    """The days that go with the kind of run; None for a run that takes what comes next."""
    if request.interval is not None and request.run_type in (RunType.SCHEDULED, RunType.BACKFILL):
        start, end = (moment.date() for moment in request.interval)
        return Window(start=start, end=max(end, start + ONE_DAY))
    if request.purpose is Purpose.TUNING:
        return Window(start=newest_landed, end=newest_landed + ONE_DAY)
    return None


def _candidates(spec: RefreshSpec, request: WindowRequest, anchors: Sequence[Anchor]) -> Sequence[Anchor]:
    if request.warm_start == Warm.NONE:
        return ()
    fitting = [anchor for anchor in anchors if anchor.fits(spec)]
    if request.warm_start == Warm.AUTO:
        # A trial's anchor is started from only by a run that names it.
        return [anchor for anchor in fitting if anchor.spec.run.purpose is Purpose.DAILY]
    named = [anchor for anchor in anchors if anchor.run == request.warm_start]
    if not named:
        have = ", ".join(anchor.run for anchor in anchors[-5:]) or "none"
        raise WindowError(f"warm_start {request.warm_start!r}: no such run has a completed anchor (newest: {have})")
    if named[0] not in fitting:
        raise WindowError(f"warm_start {request.warm_start!r}: its model or contract differs from this spec's")
    return named


def _newest_before(start: date, anchors: Sequence[Anchor], request: WindowRequest) -> Anchor | None:
    before = [anchor for anchor in anchors if anchor.window.end <= start]
    if not before and request.warm_start not in (Warm.AUTO, Warm.NONE):
        end = anchors[0].window.end
        raise WindowError(
            f"warm_start {request.warm_start!r} has trained up to {end} (exclusive), past this window's start {start}; "
            "start from an earlier run, or move the window"
        )
    return before[-1] if before else None


def _next_untrained(
    spec: RefreshSpec, anchors: Sequence[Anchor], *, landed: Sequence[date], newest_landed: date
) -> Decision:
    if not anchors:
        return Decision(_first_window(spec, newest_landed + ONE_DAY), None)
    newest = anchors[-1]
    left = [day for day in landed if day >= newest.window.end]
    if not left:
        raise NothingToTrainError(
            f"every landed day up to {newest_landed} is trained: the anchor of run {newest.run!r} ends at "
            f"{newest.window.end} (exclusive). Wait for the next day to land, or give window_start to train a day again"
        )
    return Decision(Window(start=left[0], end=left[0] + ONE_DAY), newest)


def _first_window(spec: RefreshSpec, end: date) -> Window:
    return Window(start=end - timedelta(days=spec.data.first_window_days), end=end)
