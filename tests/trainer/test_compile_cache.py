"""Compilation seen from the loop: recompiles, the recompile limit, and what is not compiled at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ett_reports.events import Phase
from trainer.compile.tower import CompiledForward, ShapePolicy
from trainer.compile.watch import CompileWatch, reaches_limit
from trainer.watchdog import HangLimits, Watchdog


class Recorded:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.spans: list[tuple[Phase, int, int]] = []
        self.points: list[tuple[str, dict[str, Any]]] = []

    def record_span(self, phase: Phase, start_ns: int, end_ns: int, **_: Any) -> None:
        self.spans.append((phase, start_ns, end_ns))

    def point(self, name: str, **attrs: Any) -> None:
        self.points.append((name, attrs))


def test_compilations_count_as_recompiles_from_the_loop_on_and_warn_at_the_limit(caplog: pytest.LogCaptureFixture):
    recorded = Recorded()
    limits = HangLimits(stage_s=300.0, factor=10.0, floor_s=60.0)
    watchdog = Watchdog(limits, on_hang=lambda hang: None, alive=lambda: None)
    watch = CompileWatch(recorded, watchdog)  # type: ignore[arg-type]
    watch.start()
    try:
        double = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
        double(torch.ones(2))
        assert (watch.compilations, recorded.spans) == (1, [])
        watch.enter_loop()
        watchdog.stepped()
        for size in range(3, 3 + torch._dynamo.config.recompile_limit - 1):
            double(torch.ones(size))
    finally:
        watch.stop()
        torch._dynamo.reset()
    limit = torch._dynamo.config.recompile_limit
    assert watch.recompilations == limit - 1
    assert {phase for phase, _, _ in recorded.spans} == {Phase.RECOMPILE}
    assert watchdog.phase is Phase.RECOMPILE  # which may take longer than a step, and is no hang
    assert all(start <= end for _, start, end in recorded.spans)
    assert [(name, attrs["limit"]) for name, attrs in recorded.points] == [("recompile_limit", limit)]
    assert "dynamic_shapes" in caplog.text


@pytest.mark.parametrize(
    ("compile_id", "reached"), [("0/7", True), ("3/7_1", True), ("[2/7]", True), ("0/6", False), ("", False)]
)
def test_limit_is_read_from_the_compile_id(compile_id: str, reached: bool):
    assert reaches_limit(compile_id, limit=8) is reached


def test_evaluation_and_single_rows_are_not_compiled(monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []

    def pretend(forward: Any) -> Any:
        return lambda *args: calls.append(len(args[0])) or forward(*args)

    monkeypatch.setattr(torch, "compile", pretend)
    marked: list[int] = []
    monkeypatch.setattr(torch._dynamo, "mark_dynamic", lambda tensor, dimension: marked.append(dimension))
    forward = CompiledForward("tower", torch.nn.Identity(), shapes=ShapePolicy.MARKED)
    for rows in (0, 1, 2, 5):
        assert len(forward(torch.ones(rows, 3))) == rows
    with torch.no_grad():
        forward(torch.ones(4, 3))
    assert calls == [2, 5]
    assert marked == [0, 0]
