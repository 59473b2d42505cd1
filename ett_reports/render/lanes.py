"""The lifecycle to scale: segments of a timeline as blocks of a lane, for any number of segments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ett_reports.events import Component, Phase
from ett_reports.render.figures import SECOND, duration
from ett_reports.render.words import COMPONENT, LEVEL_1, PHASE
from ett_reports.report import AttemptReport, Failure, JobReport, Segment

COLUMNS = 600
"""Segments narrower than one column are pooled: a lane never has more blocks than columns."""

LABEL_SHARE = 0.06

FEW = 6
"""Up to so many attempts, a lane's note has room for the cause of its end."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One colour of a block; top and height in percent of the lane's height."""

    paint: str
    top: float
    height: float


@dataclass(frozen=True, kw_only=True)
class Block:
    """A stretch of a lane; left and width in percent of the lane. Pooled segments are layers, by their time."""

    left: float
    width: float
    layers: tuple[Layer, ...]
    title: str
    label: str
    seam: bool = False  # the neighbour on the left has the same colour, so a line must part them


@dataclass(frozen=True, kw_only=True)
class Mark:
    """An instant worth a line, such as a failure; left in percent."""

    left: float
    title: str


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One row of the lifecycle."""

    name: str
    note: str
    kind: str
    blocks: tuple[Block, ...]
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A line of the time axis; left in percent."""

    left: float
    label: str
    anchor: str


@dataclass(frozen=True, kw_only=True)
class Lifecycle:
    """The lanes of a job, all on one time axis."""

    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]


def lifecycle(job: JobReport) -> Lifecycle:
    """The whole job by level 1 and level 2, then one lane per attempt."""
    wall = job.wall_ns
    whole = Lane(name="Level 1", note="class", kind="level-1", blocks=_by_class(job.segments, wall))
    parts = Lane(
        name="Level 2",
        note="component",
        kind="level-2",
        blocks=_by_component(job.segments, wall),
        marks=_marks(job.failures, wall),
    )
    attempts = tuple(_attempt_lane(job, attempt) for attempt in job.attempts)
    return Lifecycle(lanes=(whole, parts, *attempts), ticks=ticks(wall))


def ticks(wall_ns: int, most: int = 8) -> tuple[Tick, ...]:
    """Round instants from 0 to the end, at most `most` of them."""
    if wall_ns <= 0:
        return ()
    step = next(
        (step for step in _STEPS if wall_ns / (step * SECOND) <= most),
        _STEPS[-1] * -(-wall_ns // (_STEPS[-1] * SECOND * most)),
    )
    marks = []
    at = 0
    while at * SECOND <= wall_ns:
        left = 100 * at * SECOND / wall_ns
        anchor = "start" if at == 0 else "end" if left > 97 else "middle"
        marks.append(Tick(left=round(left, 3), label=_clock(at, step), anchor=anchor))
        at += step
    return tuple(marks)


_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 4 * 3600, 6 * 3600, 12 * 3600, 24 * 3600)


def _clock(at: int, step: int) -> str:
    hours, minutes, secs = at // 3600, at // 60 % 60, at % 60
    if step >= 24 * 3600:
        return f"{at // 86400} d"
    if hours or step >= 3600:
        return f"{hours}:{minutes:02d} h"
    if step >= 60:
        return f"{minutes} min"
    return f"{minutes}:{secs:02d}" if at >= 60 else f"{secs} s"


def _attempt_lane(job: JobReport, attempt: AttemptReport) -> Lane:
    own = [segment for segment in job.segments if segment.attempt == attempt.number]
    note = duration(attempt.end_ns - attempt.start_ns)
    if attempt.cause is not None and len(job.attempts) <= FEW:
        note = f"{note}, {attempt.cause.value}"
    failures = [failure for failure in job.failures if failure.attempt == attempt.number]
    return Lane(
        name=f"Attempt {attempt.number}",
        note=note,
        kind="attempt",
        blocks=(_envelope(attempt, job.wall_ns), *_by_component(own, job.wall_ns)),
        marks=_marks(failures, job.wall_ns),
    )


def _envelope(attempt: AttemptReport, wall: int) -> Block:
    left, width = _place(attempt.start_ns, attempt.end_ns, wall)
    title = f"Attempt {attempt.number}: {duration(attempt.end_ns - attempt.start_ns)}, {attempt.outcome.value}"
    return Block(left=left, width=width, layers=(Layer(paint="envelope", top=42, height=16),), title=title, label="")


def _marks(failures: Iterable[Failure], wall: int) -> tuple[Mark, ...]:
    return tuple(
        Mark(
            left=_place(failure.failure_ns, failure.failure_ns, wall)[0],
            title=f"Attempt {failure.attempt} failed: {failure.cause.value}, after {duration(failure.failure_ns)}. "
            f"Recovery {duration(failure.recovery_ns)}. {failure.message}".strip(),
        )
        for failure in failures
    )


# -- blocks -----------------------------------------------------------------------------------------------------------


Naming = Callable[[Segment], tuple[str, str, str]]
"""A segment's paint, its title and its label."""


@dataclass(frozen=True)
class _Run:
    """Neighbouring segments of one paint."""

    start: int
    end: int
    paint: str
    title: str
    label: str


def _by_component(segments: Sequence[Segment], wall: int) -> tuple[Block, ...]:
    def name(segment: Segment) -> tuple[str, str, str]:
        leaf = "" if segment.phase in (Phase.STEP, Phase.UNATTRIBUTED) else f" / {PHASE[segment.phase]}"
        label = PHASE[segment.phase] if segment.l2 is not Component.EFFECTIVE_TRAINING else "Effective training"
        return segment.l2.value, f"{COMPONENT[segment.l2]}{leaf} ({LEVEL_1[segment.l1].lower()})", label

    return tuple(_with_seams(_blocks(_merged(segments, name), wall)))


def _by_class(segments: Sequence[Segment], wall: int) -> tuple[Block, ...]:
    def name(segment: Segment) -> tuple[str, str, str]:
        return f"l1-{segment.l1.value}", LEVEL_1[segment.l1], LEVEL_1[segment.l1]

    return tuple(_with_seams(_blocks(_merged(segments, name), wall)))


def _merged(segments: Sequence[Segment], name: Naming) -> Iterator[_Run]:
    held: _Run | None = None
    for segment in segments:
        paint, title, label = name(segment)
        if held and held.end == segment.start_ns and (held.paint, held.title) == (paint, title):
            held = _Run(held.start, segment.end_ns, paint, title, label)
            continue
        if held:
            yield held
        held = _Run(segment.start_ns, segment.end_ns, paint, title, label)
    if held:
        yield held


def _blocks(runs: Iterable[_Run], wall: int) -> Iterator[Block]:
    """Wide runs stand alone; narrow neighbours are pooled until they fill a column."""
    column = max(1, wall // COLUMNS)
    pool: list[_Run] = []
    for run in runs:
        gap = pool and run.start > pool[-1].end
        if pool and (gap or run.end - run.start >= column or pool[-1].end - pool[0].start >= column):
            yield _block(pool, wall)
            pool = []
        pool.append(run)
        if run.end - run.start >= column:
            yield _block(pool, wall)
            pool = []
    if pool:
        yield _block(pool, wall)


def _with_seams(blocks: Iterable[Block]) -> Iterator[Block]:
    before: Block | None = None
    for block in blocks:
        alike = before is not None and [layer.paint for layer in before.layers] == [
            layer.paint for layer in block.layers
        ]
        wide = before is not None and min(before.width, block.width) > 0.5
        yield replace(block, seam=True) if alike and wide and len(block.layers) == 1 else block
        before = block


def _block(pool: Sequence[_Run], wall: int) -> Block:
    start, end = pool[0].start, pool[-1].end
    left, width = _place(start, end, wall)
    spent: dict[tuple[str, str], int] = {}
    for run in pool:
        spent[run.paint, run.title] = spent.get((run.paint, run.title), 0) + run.end - run.start
    total = max(1, end - start)
    layers, top = [], 0.0
    for (paint, _), part in spent.items():
        height = 100 * part / total
        layers.append(Layer(paint=paint, top=round(top, 2), height=round(height, 2)))
        top += height
    texts = [f"{title}: {duration(part)}" for (_, title), part in sorted(spent.items(), key=lambda item: -item[1])]
    more = [] if len(texts) <= 6 else [f"and {len(texts) - 6} more"]
    title = "\n".join([*texts[:6], *more, f"from {duration(start)} to {duration(end)} after submission"])
    wide = len(pool) == 1 and end - start >= LABEL_SHARE * wall
    return Block(left=left, width=width, layers=tuple(layers), title=title, label=pool[0].label if wide else "")


def _place(start: int, end: int, wall: int) -> tuple[float, float]:
    whole = max(1, wall)
    return round(100 * start / whole, 4), round(100 * (end - start) / whole, 4)
