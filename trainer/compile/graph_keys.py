"""The compiler's own keys of the graphs it compiles, and which component of one differs where a graph is missed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from torch._functorch._aot_autograd import autograd_cache
from torch._inductor import codecache

_DIGEST_CHARACTERS = 12
_MOST_NAMED = 20
_LINE = re.compile(r"\[(\w+)\] ([^:]{1,200}): ")
_NAME = re.compile(r"[\w\[\]. -]{1,200}")


class GraphKind(StrEnum):
    """Which cache a key belongs to; one graph of Dynamo's has one key of the first kind and two of the second."""

    AUTOGRAD = "autograd"  # AOTAutogradCache: forward and backward together, before they are split
    INDUCTOR = "inductor"  # FxGraphCache: one of them


@dataclass(frozen=True, kw_only=True)
class GraphKey:
    """A graph's key, and a digest of each component that went into it."""

    kind: GraphKind
    key: str
    components: dict[str, str]

    @classmethod
    def of(cls, kind: GraphKind, key: str, lines: Iterable[str]) -> GraphKey:
        """From torch's own lines, `[digest] name: value`: the values may hold addresses, the digests do not.

        >>> GraphKey.of(GraphKind.INDUCTOR, "f1", ["[abc] system_info[hash]: xyz"]).components
        {'system_info[hash]': 'abc'}
        """
        found = [match for line in lines if (match := _LINE.match(line))]
        return cls(kind=kind, key=key, components={match[2]: match[1][:_DIGEST_CHARACTERS] for match in found})

    def changed_from(self, other: GraphKey) -> list[str]:
        """Names of the components that differ."""
        mine, theirs = self.components, other.components
        return sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind.value, "key": self.key, "components": self.components}

    @classmethod
    def from_json(cls, document: Any) -> GraphKey:
        """Raises KeyError, TypeError or ValueError for anything else than what `to_json` gives."""
        components = {str(name): str(digest) for name, digest in document["components"].items()}
        if not all(_NAME.fullmatch(name) for name in components):
            raise ValueError("a component's name is none")
        return cls(kind=GraphKind(document["kind"]), key=str(document["key"]), components=components)


def why_missed(used: Sequence[GraphKey], known: Sequence[GraphKey]) -> list[str]:
    """What differs between the graphs of `used` that are not among `known` and those that are nearest to them.

    Empty where every graph is known, or none is.
    """
    keys = {(graph.kind, graph.key) for graph in known}
    changed: set[str] = set()
    for graph in used:
        if (graph.kind, graph.key) in keys:
            continue
        differences = [graph.changed_from(other) for other in known if other.kind is graph.kind]
        if differences:
            changed.update(sorted(differences, key=len)[0])
    return sorted(changed)[:_MOST_NAMED]


@dataclass
class GraphKeyLog:
    """Writes down every key that torch computes in this process, from `start` to `stop`."""

    graphs: list[GraphKey] = field(default_factory=list)
    _restore: list[Callable[[], None]] = field(default_factory=list)

    def start(self) -> None:
        """Begin. torch offers no callback for it, so its two functions are wrapped; without them nothing is logged."""
        self._wrap(codecache, "compiled_fx_graph_hash", self._log_inductor)
        self._wrap(autograd_cache, "_get_debug_lines_for_cache_key", self._log_autograd)

    def stop(self) -> None:
        """End; what is written down stays."""
        while self._restore:
            self._restore.pop()()

    def _log_inductor(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        key, lines = original(*args, **kwargs)
        self._log(GraphKind.INDUCTOR, key, lines)
        return key, lines

    def _log_autograd(self, original: Callable[..., Any], pickler: Any, details: Any, key: str) -> Any:
        self._log(GraphKind.AUTOGRAD, key, pickler.debug_lines(details))
        return original(pickler, details, key)

    def _log(self, kind: GraphKind, key: str, lines: Iterable[str]) -> None:
        if not any(graph.kind is kind and graph.key == key for graph in self.graphs):
            self.graphs.append(GraphKey.of(kind, key, lines))

    def _wrap(self, module: Any, name: str, logging: Callable[..., Any]) -> None:
        original = getattr(module, name, None)
        if original is None:
            return

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return logging(original, *args, **kwargs)

        setattr(module, name, wrapped)
        self._restore.append(lambda: setattr(module, name, original))
