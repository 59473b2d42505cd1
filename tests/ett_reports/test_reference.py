"""A slow, obvious reducer that sweeps over instants agrees with the fast one; so does a naive critical path."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ett_reports.critical_path import Branch, RankBranches, walk_back
from ett_reports.events import COMPONENT_OF, L1, PHASE_ORDER, Phase
from tests.ett_reports.story import SECOND, Story
from tests.ett_reports.test_properties import EXAMPLES

few = settings(max_examples=max(30, EXAMPLES), deadline=None)

STARTUP = (Phase.DEVICE_INIT, Phase.PROCESS_GROUP, Phase.TRAIN_MODULE, Phase.COMPILE, Phase.CHECKPOINT_RESTORE)


@dataclass(frozen=True)
class Step:
    """own and wait in seconds; blocked: a blocking phase before the step's own time. 4 samples, own a multiple of 4."""

    own: int
    wait: int
    blocked: tuple[Phase, int] | None


@dataclass(frozen=True)
class Script:
    """One attempt, all in whole seconds."""

    idle: int
    queue: int
    setup: int
    startup: tuple[tuple[Phase, int], ...]
    rewind: int
    steps: tuple[Step, ...]
    lost: int
    detect: int
    teardown: int
    final_save: int


steps = st.builds(
    Step,
    own=st.sampled_from([4, 8]),
    wait=st.integers(0, 3),
    blocked=st.none()
    | st.tuples(st.sampled_from([Phase.CHECKPOINT_BLOCKING, Phase.EVALUATION, Phase.RECOMPILE]), st.integers(1, 5)),
)
scripts = st.builds(
    Script,
    idle=st.integers(0, 9),
    queue=st.integers(0, 5),
    setup=st.integers(0, 3),
    startup=st.lists(st.tuples(st.sampled_from(STARTUP), st.integers(0, 6)), max_size=4).map(tuple),
    rewind=st.integers(0, 30),
    steps=st.lists(steps, max_size=6).map(tuple),
    lost=st.integers(0, 4),
    detect=st.integers(0, 3),
    teardown=st.integers(0, 3),
    final_save=st.integers(0, 4),
)


class Reference:
    """One entry per second: its leaf. Failures as seconds. Then level 1 by looking at every second in turn."""

    def __init__(self, attempts: list[Script]) -> None:
        self.leaves: list[Phase] = []
        self.failures: list[tuple[int, int, int]] = []
        self.mark = 0
        self.completed = False
        for number, script in enumerate(attempts):
            self.attempt(script, last=number == len(attempts) - 1, first=number == 0)

    def add(self, phase: Phase, seconds: int) -> None:
        self.leaves += [phase] * seconds

    def attempt(self, script: Script, last: bool, first: bool) -> None:
        if not first:
            self.add(Phase.RETRY_WAIT, script.idle)
        self.add(Phase.QUEUE_WAIT, script.queue)
        self.add(Phase.HARDWARE_SETUP, script.setup)
        for phase, seconds in script.startup:
            self.add(phase, seconds)
        cursor = max(0, self.mark - script.rewind)
        progress = None
        for number, step in enumerate(script.steps):
            self.add(Phase.FIRST_BATCH if number == 0 else Phase.DATA_STALL, step.wait)
            if step.blocked is not None:
                compiling = step.blocked[0] is Phase.RECOMPILE and number == 0
                self.add(Phase.COMPILE if compiling else step.blocked[0], step.blocked[1])
            replayed = min(4, max(0, self.mark - cursor))
            self.add(Phase.REPLAY, step.own * replayed // 4)
            self.add(Phase.STEP, step.own * (4 - replayed) // 4)
            cursor += 4
            self.mark = max(self.mark, cursor)
            progress = len(self.leaves)
        if last:
            self.add(Phase.FINAL_CHECKPOINT, script.final_save)
            return
        lost = script.lost if progress is not None else 0
        self.add(Phase.LOST_STEP, lost)
        failure = len(self.leaves)
        self.add(Phase.HANG, script.detect)
        self.failures.append((failure if progress is None else progress, failure, len(self.leaves)))
        self.add(Phase.TEARDOWN, script.teardown)

    def levels(self) -> tuple[list[L1], list[int]]:
        """Level 1 of each second, and each recovery's length."""
        productive = [second for second, leaf in enumerate(self.leaves) if leaf is Phase.STEP]
        levels: list[L1] = []
        for second, leaf in enumerate(self.leaves):
            if leaf is Phase.STEP:
                levels.append(L1.PRODUCTIVE)
            elif any(start <= second < self.recovered(index) for index, (start, _, _) in enumerate(self.failures)):
                levels.append(L1.RECOVERY)
            elif not productive or second < productive[0]:
                levels.append(L1.TTS)
            elif second > productive[-1]:
                levels.append(L1.SHUTDOWN)
            else:
                levels.append(L1.IN_LOOP)
        return levels, [self.recovered(index) - start for index, (start, _, _) in enumerate(self.failures)]

    def recovered(self, index: int) -> int:
        """The second at which a recovery ends: productive, the next one's start, or the end."""
        start = self.failures[index][0]
        following = self.failures[index + 1][0] if index + 1 < len(self.failures) else len(self.leaves)
        second = start
        while second < following and self.leaves[second] is not Phase.STEP:
            second += 1
        return second


def tell(attempts: list[Script], folder: Path) -> Story:
    """The same scripts through the recorder."""
    story, at, mark = Story(folder), 0, 0
    for index, script in enumerate(attempts):
        number, last = index + 1, index == len(attempts) - 1
        at += script.idle if index else 0
        story.launcher.at(at).point("submitted", attempt=number, devices=1)
        at += script.queue
        story.launcher.at(at).point("allocated", attempt=number, devices=1)
        at += script.setup
        story.launcher.at(at).point("launched", attempt=number)
        trainer = story.trainer(number, at)
        for phase, seconds in script.startup:
            at += seconds
            with trainer.span(phase, until=at):
                pass
        if script.steps:
            trainer.begin(max(0, mark - script.rewind))
        for step in script.steps:
            at += step.wait
            trainer.at(at)
            if step.blocked is not None:
                at += step.blocked[1]
                with trainer.span(step.blocked[0], until=at):
                    pass
            at += step.own
            trainer.at(at)
            trainer.cursor += 4
            trainer.recorder.step(cursor=trainer.cursor, data_wait_ns=step.wait * SECOND)
            mark = max(mark, trainer.cursor)
        if last:
            at += script.final_save
            with trainer.span(Phase.FINAL_CHECKPOINT, until=at):
                pass
            trainer.finish()
            story.complete(number, at)
            continue
        at += script.lost if script.steps else 0
        story.launcher.at(at).point("failure", attempt=number, cause="application")
        at += script.detect
        story.launcher.at(at).point("detected", attempt=number, cause="application")
        at += script.teardown
        story.launcher.at(at).point("released", attempt=number, outcome="failed", cause="application")
    return story


# The last attempt trains something new, so that "nothing left to train" never decides (its own golden case does).
jobs = st.lists(scripts, min_size=1, max_size=4).filter(lambda job: 4 * len(job[-1].steps) > job[-1].rewind)


@given(jobs)
@few
def test_reference_agrees(attempts: list[Script]) -> None:
    reference = Reference(attempts)
    levels, recoveries = reference.levels()
    with tempfile.TemporaryDirectory() as folder:
        report = tell(attempts, Path(folder) / "events").report()
    assert report.wall_ns == len(reference.leaves) * SECOND
    for phase in Phase:
        assert report.exposed(phase) == reference.leaves.count(phase) * SECOND, phase
    for level in L1:
        seconds = [leaf for leaf, told in zip(reference.leaves, levels, strict=True) if told is level]
        assert report.l1[level] == len(seconds) * SECOND, level
        for component in report.l2:
            assert report.cross[level][component] == sum(COMPONENT_OF[leaf] is component for leaf in seconds) * SECOND
    assert [failure.recovery_ns for failure in report.failures] == [length * SECOND for length in recoveries]
    parts = [(failure.failure_ns, failure.detected_ns) for failure in report.failures]
    assert parts == [(failure * SECOND, detected * SECOND) for _, failure, detected in reference.failures]


branches = st.builds(
    lambda number, phase, at, length, waits: Branch(f"p#{number}", phase, at, at + length, f"t{number}", waits),
    number=st.integers(0, 99),
    phase=st.sampled_from(STARTUP),
    at=st.integers(0, 12),
    length=st.integers(0, 8),
    waits=st.lists(st.integers(0, 5).map(lambda number: f"p#{number}"), max_size=2).map(tuple),
)


def naive_walk(spans: list[Branch], start: int, join: int) -> list[str]:
    """Section 5 to the letter, instant by instant, looking at all spans each time. One span per thread."""
    owners = ["-"] * (join - start)
    taking_part = [span for span in spans if span.end <= join]
    by_name = {span.reference: span for span in taking_part}
    at, entered, passed = join, set(), set()

    def first(candidates: list[Branch]) -> Branch | None:
        key = lambda span: (-span.end, span.start, PHASE_ORDER[span.phase], span.reference)  # noqa: E731
        return min(candidates, key=key, default=None)

    def fall_back() -> Branch | None:
        running = [span for span in taking_part if span.start < at < span.end]
        ended = [span for span in taking_part if span.end <= at and span.reference not in passed]
        return first(running) or first(ended)

    current = fall_back()
    while current is not None and at > start:
        at = min(at, max(start, current.end))
        while at > max(start, current.start):
            at -= 1
            owners[at - start] = current.reference
        passed.add(current.reference)
        known = [by_name[name] for name in current.waits_for if name in by_name]
        known = [span for span in known if span.reference not in entered and span is not current]
        led = first(known)
        if led is not None:
            entered.add(led.reference)
        current = led or fall_back()
    return owners


@given(st.lists(branches, max_size=7, unique_by=lambda branch: branch.reference), st.integers(5, 20))
@settings(max_examples=max(100, EXAMPLES), deadline=None)
def test_critical_path_agrees_with_the_naive_walk(spans: list[Branch], join: int) -> None:
    walk = walk_back([RankBranches(0, spans)], 0, 0, join)
    phases = {span.reference: span.phase for span in spans} | {"-": Phase.UNATTRIBUTED}
    told = [piece.phase for piece in walk.pieces for _ in range(piece.length)]
    assert told == [phases[name] for name in naive_walk(spans, 0, join)]
