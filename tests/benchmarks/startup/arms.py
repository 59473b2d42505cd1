"""What is compared: techniques on and off, compile regimes, models, tables and ranks, as cells with stable names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from trainer.optimizations import Technique

Techniques = frozenset[Technique]

IN_ORDER: tuple[Technique, ...] = tuple(Technique)
ALL: Techniques = frozenset(Technique)
NONE: Techniques = frozenset()
IDLE: Techniques = frozenset({Technique.SKIP_MODULES, Technique.AUTOTUNE_PRUNING})
"""They do nothing where no module is named and nothing is autotuned; their experiments are `untraced`, `autotuning`."""
SHARDING: Techniques = frozenset({Technique.LOCAL_METADATA, Technique.PLAN_CACHE, Technique.SKIP_STATE_BROADCAST})


class Architecture(StrEnum):
    """The factories that are compared; all train on the same columns."""

    DLRM = "dlrm"
    DCN_V2 = "dcn_v2"
    ATTENTION = "attention"

    @property
    def factory(self) -> str:
        name = "dlrm" if self is Architecture.DLRM else f"dlrm_{self.value}"
        return f"trainer.model.{self.value}:{name}"


class NodeFolder(StrEnum):
    """What of earlier compilations is on the node when an attempt starts; archives are the techniques' matter."""

    FRESH = "fresh"  # nothing, as on another host
    KEPT = "kept"  # Inductor's folder of an earlier attempt


class DataSource(StrEnum):
    """How the partitions answer."""

    AS_IS = "as-is"
    EMULATED_LATENCY = "emulated-latency"  # every file opens late, by a wrapper of the benchmark


class Course(StrEnum):
    """What an attempt goes through before it is measured."""

    TRAIN = "train"  # a day's refresh, from its submission to its anchor
    SHARD = "shard"  # as far as the sharded model
    RESTART = "restart"  # a rank is killed after a checkpoint; the next attempt is measured


class Gemms(StrEnum):
    """How Inductor chooses the implementation of a matrix product (`compilation.max_autotune`)."""

    DEFAULT = "default"
    AUTOTUNED = "autotuned"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One arm under one set of circumstances: the unit that is run n times. `untraced`: modules for `skip_modules`."""

    on: Techniques
    course: Course = Course.TRAIN
    model: Architecture = Architecture.DLRM
    tables: int = 24
    ranks: int = 2
    node: NodeFolder = NodeFolder.FRESH
    source: DataSource = DataSource.AS_IS
    gemms: Gemms = Gemms.DEFAULT
    untraced: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Equal cells of several experiments have one name, so that they are run once.

        >>> Cell(on=ALL - {Technique.FAST_BATCH}).name
        'train.dlrm.24x2.all-fast_batch'
        >>> Cell(on=NONE, model=Architecture.ATTENTION, node=NodeFolder.KEPT).name
        'train.attention.24x2.none.node-kept'
        """
        usual = Cell(on=NONE)
        unusual = [
            f"{field}-{getattr(self, field).value}"
            for field in ("node", "source", "gemms")
            if getattr(self, field) != getattr(usual, field)
        ]
        untraced = [f"untraced-{'+'.join(self.untraced)}"] if self.untraced else []
        size = f"{self.tables}x{self.ranks}"
        return ".".join([self.course.value, self.model.value, size, written(self.on), *unusual, *untraced])


def written(on: Techniques) -> str:
    """A set of techniques, short and unambiguous.

    >>> written(frozenset(IN_ORDER[:2])), written(frozenset({Technique.FAST_BATCH}))
    ('upto-plan_cache', 'fast_batch')
    """
    if on in (ALL, NONE):
        return "all" if on else "none"
    if len(on) > 1 and on == frozenset(IN_ORDER[: len(on)]):
        return f"upto-{IN_ORDER[len(on) - 1]}"
    missing = [technique.value for technique in IN_ORDER if technique not in on]
    if len(missing) <= 3:
        return "-".join(["all", *missing])
    return "+".join(technique.value for technique in IN_ORDER if technique in on)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A cell under the name that it has in a table."""

    label: str
    cell: Cell


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table. Its first arm is what the others are compared with."""

    name: str
    title: str
    arms: tuple[Arm, ...]

    @property
    def baseline(self) -> Arm:
        return self.arms[0]


def cumulative() -> Experiment:
    """All off, then one technique more per arm, in the paper's order."""
    arms = [Arm(label="all off", cell=Cell(on=NONE))]
    arms += [
        Arm(label=f"+ `{technique}`", cell=Cell(on=frozenset(IN_ORDER[: number + 1])))
        for number, technique in enumerate(IN_ORDER)
        if technique not in IDLE
    ]
    return Experiment(name="cumulative", title="One technique after the other", arms=tuple(arms))


def leave_one_out() -> Experiment:
    """All on, then each technique alone left out."""
    arms = [Arm(label="all on", cell=Cell(on=ALL))]
    arms += [
        Arm(label=f"without `{technique}`", cell=Cell(on=ALL - {technique}))
        for technique in IN_ORDER
        if technique not in IDLE
    ]
    return Experiment(name="leave-one-out", title="All but one", arms=tuple(arms))


def regimes(model: Architecture) -> Experiment:
    """What a compilation finds: nothing, the archive on a fresh node, or the node's own folder."""
    nothing = ALL - {Technique.ARTIFACT_CACHE}
    # Ranks that keep their folder run the benchmark's wrapper, which no standby serves.
    kept = nothing - {Technique.WARM_STANDBY}
    arms = (
        Arm(label="all off, nothing cached", cell=Cell(on=NONE, model=model)),
        Arm(label="all on, nothing cached", cell=Cell(on=nothing, model=model)),
        Arm(label="all on, archive only", cell=Cell(on=ALL, model=model)),
        Arm(label="all on, local cache", cell=Cell(on=kept, model=model, node=NodeFolder.KEPT)),
    )
    return Experiment(name=f"regimes-{model}", title=f"Compilation of `{model.factory}`", arms=arms)


def sharding(tables: int, ranks: int) -> Experiment:
    """The sharding phase by number of tables, with the techniques that are about it."""
    arms = tuple(
        Arm(label=label, cell=Cell(on=on, course=Course.SHARD, tables=tables, ranks=ranks))
        for label, on in (("all off", NONE), ("the three of sharding on", SHARDING))
    )
    return Experiment(name=f"sharding-{tables}x{ranks}", title=f"{tables} tables on {ranks} ranks", arms=arms)


def latency() -> Experiment:
    """What starts while the data are still on their way."""
    overlap = {Technique.FAST_BATCH, Technique.PARALLEL_INIT}
    sets = (NONE, frozenset({Technique.FAST_BATCH}), frozenset({Technique.PARALLEL_INIT}), frozenset(overlap))
    arms = tuple(
        Arm(label=written(on) if on else "all off", cell=Cell(on=on, source=DataSource.EMULATED_LATENCY)) for on in sets
    )
    return Experiment(name="latency", title="A source of data whose latency is emulated", arms=arms)


def restart() -> Experiment:
    """From the submission of the attempt after a killed rank."""
    arms = (
        Arm(label="all off", cell=Cell(on=NONE, course=Course.RESTART)),
        Arm(label="all on", cell=Cell(on=ALL, course=Course.RESTART)),
    )
    return Experiment(name="restart", title="Restart after a killed rank", arms=arms)


def untraced() -> Experiment:
    """Attention left out of tracing, nothing cached."""
    module = ("tower.attention",)
    on = ALL - {Technique.ARTIFACT_CACHE}
    cells = [Cell(on=one, model=Architecture.ATTENTION, untraced=module) for one in (on - {Technique.SKIP_MODULES}, on)]
    arms = tuple(Arm(label=label, cell=cell) for label, cell in zip(("traced", "not traced"), cells, strict=True))
    return Experiment(name="untraced", title="Attention traced or not", arms=arms)


def autotuning() -> Experiment:
    """Matrix products autotuned, with and without pruning; one compilation of sizes as they come, nothing cached."""
    on = ALL - {Technique.ARTIFACT_CACHE, Technique.DYNAMIC_SHAPES}
    arms = (
        Arm(label="no autotuning", cell=Cell(on=on)),
        Arm(label="every choice timed", cell=Cell(on=on - {Technique.AUTOTUNE_PRUNING}, gemms=Gemms.AUTOTUNED)),
        Arm(label="pruned to the committed choices", cell=Cell(on=on, gemms=Gemms.AUTOTUNED)),
    )
    return Experiment(name="autotuning", title="Autotuned matrix products", arms=arms)


EXPERIMENTS: tuple[Experiment, ...] = (
    cumulative(),
    leave_one_out(),
    *(regimes(model) for model in Architecture),
    restart(),
    *(sharding(tables, ranks) for ranks in (2, 4) for tables in (50, 200, 400)),
    latency(),
    untraced(),
    autotuning(),
)

FIRST = frozenset({"cumulative", "leave-one-out", "regimes-dlrm", "restart"})
"""Experiments whose cells come first in every round: without them the goals cannot be judged."""


def cells_of(experiments: Iterable[Experiment]) -> list[Cell]:
    """Every cell once, in the order of its first mention."""
    return list(dict.fromkeys(arm.cell for experiment in experiments for arm in experiment.arms))


def chosen(patterns: Sequence[str]) -> list[Experiment]:
    """The experiments whose name begins with one of `patterns`; all of them without any.

    Raises:
        ValueError: a pattern fits none.
    """
    for pattern in patterns:
        if not any(experiment.name.startswith(pattern) for experiment in EXPERIMENTS):
            known = ", ".join(experiment.name for experiment in EXPERIMENTS)
            raise ValueError(f"no experiment begins with {pattern!r}; there are {known}")
    return [one for one in EXPERIMENTS if not patterns or any(one.name.startswith(pattern) for pattern in patterns)]
