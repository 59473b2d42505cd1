"""A report as plain text, for logs and for terminals without more."""

from __future__ import annotations

from ett_reports.events import L1, Component
from ett_reports.report import JobReport, RefreshReport


def render(report: JobReport, refresh: RefreshReport | None = None) -> str:
    """The answer first, then the cross table, failures, and what is missing."""
    lines = [f"{printable(report.job)}  {report.state}  ETT {percent(report.ett)}  of {duration(report.wall_ns)}"]
    lines.append(
        f"held {duration(report.held_ns)} (ETT {percent(report.held_ett)}), failures {report.nof}, "
        f"GPU-hours lost {'n/a' if report.gpu_hours_lost is None else format(report.gpu_hours_lost, '.2f')}"
    )
    lines += ["", *_cross_table(report), ""]
    for failure in report.failures:
        lines.append(
            f"attempt {failure.attempt}: {failure.cause}, recovery {duration(failure.recovery_ns)} = lost "
            f"{duration(failure.lost_ns)} + detect {duration(failure.detect_ns)} + TTR {duration(failure.ttr_ns)}"
            + (f" - {printable(failure.message)}" if failure.message else "")
        )
    for total in report.phases:
        exposed, busy = duration(total.exposed_ns), duration(total.busy_ns)
        lines.append(f"  {total.phase:<20} exposed {exposed:>10}  busy {busy:>10}")
    for shift in report.clock_shifts:
        lines.append(f"clock of {printable(shift.host)} moved by {shift.shift_ns / 1e9:+.3f} s")
    lines += [f"degraded: {printable(line)}" for line in report.degraded]
    lines += [f"note: {printable(line)}" for line in report.flags]
    if refresh is not None:
        lines += ["", *_refresh(refresh)]
    return "\n".join(lines)


def _cross_table(report: JobReport) -> list[str]:
    width = 13
    rows = [" " * 20 + "".join(f"{level:>{width}}" for level in L1) + f"{'sum':>{width}}"]
    for component in Component:
        cells = "".join(f"{duration(report.cross[level][component]):>{width}}" for level in L1)
        rows.append(f"{component:<20}{cells}{duration(report.l2[component]):>{width}}")
    sums = "".join(f"{duration(report.l1[level]):>{width}}" for level in L1)
    rows.append(f"{'sum':<20}{sums}{duration(report.wall_ns):>{width}}")
    return rows


def _refresh(refresh: RefreshReport) -> list[str]:
    fresh = "n/a" if refresh.freshness_ns is None else duration(refresh.freshness_ns)
    lines = [f"refresh {refresh.state}  {duration(refresh.wall_ns)}  freshness {fresh}"]
    for task in refresh.tasks:
        share = f"ETT {percent(task.ett)}" if task.holds_devices else f"share {percent(task.share)}"
        lines.append(f"  {printable(task.task):<16} {duration(task.interval_ns):>10}  {share}")
        for item in task.tries:
            lines.append(
                f"    try {item.number} {printable(item.state)}: queue {duration(item.queue_ns)}, run "
                f"{duration(item.run_ns)}, deferred {duration(item.deferred_ns)}, retry wait "
                f"{duration(item.retry_wait_ns)}, wasted {duration(item.wasted_ns)}"
            )
    lines += [f"degraded: {printable(line)}" for line in refresh.degraded]
    return lines


def percent(share: float | None) -> str:
    return "n/a" if share is None else f"{100 * share:.2f}%"


def duration(value: int) -> str:
    """Seconds below two minutes, minutes below two hours, else hours."""
    seconds = value / 1e9
    if abs(seconds) < 120:
        return f"{seconds:.2f} s"
    return f"{seconds / 60:.2f} min" if abs(seconds) < 7200 else f"{seconds / 3600:.2f} h"


def printable(text: str) -> str:
    """Event text is untrusted: no control characters reach a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)
