"""The seven startup stages of the paper (IV-A), with restore and compilation between them, as a graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist

from ett_reports.events import Phase
from ett_reports.recorder import Recorder, Span
from trainer.attempt import Attempt
from trainer.checkpoint import (
    Checkpointer,
    CheckpointMode,
    CheckpointRef,
    Lineage,
    Progress,
    RankProgress,
    newest_complete,
    restore,
)
from trainer.compile import tower
from trainer.compile.attempt_cache import AttemptCache, cache_attrs
from trainer.compile.cache import GraphCacheUse
from trainer.compile.fast_batch import compile_ahead
from trainer.compile.watch import COMPILE_SILENCE_S, CompileWatch
from trainer.determinism import use_deterministic_operations
from trainer.dpp.batch import sparse_keys, to_tensors
from trainer.dpp.cursor import Interval, count, divide, steps_for
from trainer.dpp.decode import HostBatch
from trainer.dpp.errors import DppError
from trainer.dpp.plan import ReadPlan
from trainer.dpp.reader import PartitionReader
from trainer.kernels import ConfigSource, use_configs
from trainer.loop import TrainingLoop
from trainer.loss_watch import LossWatch
from trainer.model import build_model
from trainer.model.initialization import initialize_tables, table_configs
from trainer.model.sharding import (
    DenseBuckets,
    DenseSync,
    ShardMetadataSource,
    dense_on,
    shard_model,
    sync_dense_state,
)
from trainer.model.trainee import Trainee
from trainer.padding import padded
from trainer.preemption import PreemptionFlag
from trainer.progress import Position, ProgressiveQuality
from trainer.random_states import GeneratorStart
from trainer.ranks import ProcessGroups, StepFacts, agree, choose_device
from trainer.saving import ProgressSaver
from trainer.spec import RunSpec, Technique
from trainer.stages import Stage, run_in_sequence, run_overlapped
from trainer.storage import CheckpointPlace
from trainer.watchdog import Watchdog

COMMIT_MARGIN_S = 60.0


class Startup:
    """Brings one rank from nothing to its first step; each stage sets what later ones use, up to the loop."""

    device: torch.device
    groups: ProcessGroups
    plan: ReadPlan
    reader: PartitionReader
    trainee: Trainee
    saver: ProgressSaver
    position: Position
    loop: TrainingLoop

    def __init__(
        self, attempt: Attempt, spec: RunSpec, preemption: PreemptionFlag, recorder: Recorder, watchdog: Watchdog
    ) -> None:
        self._attempt, self._preemption, self._recorder, self._watchdog = attempt, preemption, recorder, watchdog
        self._run, self.spec = spec, spec.refresh
        self._on = spec.refresh.optimizations.enabled
        self._place = attempt.place
        self._checkpoints_at = CheckpointPlace.of(attempt.run_folder, spec.refresh)
        self._resume: Progress | None = None
        self._first: list[HostBatch | DppError] = []
        self._watch = CompileWatch(recorder, watchdog)
        fixed = self._on(Technique.FIXED_BATCH)
        self._smallest_batch = spec.refresh.training.batch_size if fixed else 0
        varies = self._on(Technique.DYNAMIC_SHAPES) and not fixed
        self._choice = tower.Choice(
            shapes=tower.ShapePolicy.MARKED if varies else tower.ShapePolicy.OBSERVED,
            untraced=spec.refresh.compilation.untraced_modules if self._on(Technique.SKIP_MODULES) else (),
        )
        self._shares: list[tuple[Interval, ...]] = []

    def run(self) -> None:
        """All stages, one after the other or overlapped as the spec says.

        Raises:
            StageError: a stage failed.
        """
        self._watch.start()
        if self._on(Technique.PARALLEL_INIT):
            run_overlapped(self.stages(), self._recorder, self._watchdog, enter_thread=self._enter_thread)
            self._prepare_compiler()
        else:
            run_in_sequence(self.stages(), self._recorder, self._watchdog)

    def stages(self) -> list[Stage]:
        """The graph: what each stage needs is what may overlap with the others.

        In sequence they run in this order, which is that of the paper's Figure 2a, and with the fast batch of 2b.
        """
        model = Stage(Phase.TRAIN_MODULE, self._build, after=[Phase.DEVICE_INIT], part="model")
        ahead = self._on(Technique.FAST_BATCH)
        compiling = Stage(
            Phase.COMPILE,
            self._compile_ahead if ahead else self._compile_on_first_batch,
            # Not beside the model's own creation: the compiler puts torch's generator back to where it was.
            after=[Phase.PROCESS_GROUP, model.name] if ahead else [Phase.FIRST_BATCH],
            silence_s=COMPILE_SILENCE_S,
        )
        return [
            Stage(Phase.DEVICE_INIT, self._device_init),
            Stage(Phase.PROCESS_GROUP, self._process_group, after=[Phase.DEVICE_INIT]),
            Stage(Phase.PREPROCESSING, self._preprocessing),
            model,
            Stage(Phase.TRAIN_MODULE, self._train_module, after=[Phase.PROCESS_GROUP, model.name]),
            Stage(Phase.PLUGIN_INIT, self._plugin_init, after=[Phase.TRAIN_MODULE]),
            Stage(Phase.CHECKPOINT_RESTORE, self._checkpoint_restore, after=[Phase.PLUGIN_INIT]),
            Stage(Phase.PRE_TRAIN_SETUP, self._pre_train_setup, after=[Phase.CHECKPOINT_RESTORE, Phase.PREPROCESSING]),
            *([compiling] if ahead else []),
            Stage(Phase.FIRST_BATCH, self._first_batch, after=[Phase.PRE_TRAIN_SETUP]),
            *([] if ahead else [compiling]),
        ]

    # -- the stages -----------------------------------------------------------------------------------------------

    def _device_init(self, span: Span) -> None:
        self.device = choose_device(self.spec.resources.device, self._place)
        if self.spec.training.deterministic:
            use_deterministic_operations()
        span.note(device=str(self.device), threads=torch.get_num_threads())

    def _process_group(self, span: Span) -> None:
        # A save that blocks one rank until it is given up must end as a failed save, not as a lost peer.
        longest_save_s = self.spec.checkpoint.commit_timeout_s + COMMIT_MARGIN_S
        self.groups = ProcessGroups.create(self._place, self.device, longest_wait_s=longest_save_s)
        span.note(backend=dist.get_backend(), world_size=self._place.world_size)

    def _preprocessing(self, span: Span) -> None:
        """Open the plan, negotiate partitions, and start reading where the newest checkpoint says."""
        self.plan = ReadPlan.load(self._attempt.run_folder.plan_path)
        newest = newest_complete(self._checkpoints_at.checkpoints)
        self._start_reading(self._shares_of(newest.manifest().progress if newest else None))
        remaining = sum(count(share) for share in self._shares)
        span.note(planned_samples=self.plan.train_rows, remaining_samples=remaining)
        if self._leads:
            self._recorder.point("stream", planned_samples=self.plan.train_rows)

    def _build(self, span: Span) -> None:
        """The model, its tables without storage yet, its other parts ready to be compiled."""
        self._model = dense_on(build_model(self.spec), self.device)
        self._tables = table_configs(self._model)
        self._forwards = tower.install(self._model, self._choice)
        span.note(compiled_parts=len(self._forwards))

    def _train_module(self, span: Span) -> None:
        deterministic = self.spec.training.deterministic
        cached = self._on(Technique.PLAN_CACHE) or deterministic  # another search may find another plan
        sync = self._dense_sync()
        sharded = shard_model(
            self._model,
            device=self.device,
            sparse_learning_rate=self.spec.training.sparse_learning_rate,
            local_world_size=self._place.local_world_size,
            plan_folder=self._attempt.run_folder.compile_cache_dir if cached else None,
            metadata=ShardMetadataSource.PLAN if self._on(Technique.LOCAL_METADATA) else ShardMetadataSource.GATHERED,
            dense_buckets=DenseBuckets.FIXED if deterministic else DenseBuckets.REBUILT,
            dense_sync=sync,
        )
        self.trainee = Trainee(
            sharded.dmp,
            dense_learning_rate=self.spec.training.dense_learning_rate,
            warmup_steps=self.spec.training.warmup_steps,
        )
        self._synced = sync is DenseSync.BROADCAST
        span.note(tables=len(self._tables), plan=sharded.plan_origin, dense_sync=sync)

    def _dense_sync(self) -> DenseSync:
        """Whether dense weights are sent round, as rank 0 sees it: not where a checkpoint is loaded over them next."""
        if not self._on(Technique.SKIP_STATE_BROADCAST):
            return DenseSync.BROADCAST
        loads = self._run.run.warm_start is not None or newest_complete(self._checkpoints_at.checkpoints) is not None
        told = [loads]
        dist.broadcast_object_list(told, src=0)
        return DenseSync.SKIPPED if told[0] else DenseSync.BROADCAST

    def _plugin_init(self, span: Span) -> None:
        """Checkpoints and metrics."""
        mode = CheckpointMode.ASYNC if self._on(Technique.ASYNC_CHECKPOINT) else CheckpointMode.SYNC
        window = self._run.run.window
        self.saver = ProgressSaver(
            checkpointer=Checkpointer(
                self._checkpoints_at,
                lineage=Lineage.of(self._run),
                recorder=self._recorder,
                keep=self.spec.checkpoint.keep,
                mode=mode,
                process_group=self.groups.control,
                commit_timeout_s=self.spec.checkpoint.commit_timeout_s,
            ),
            trainee=self.trainee,
            quality=ProgressiveQuality(self.device),
            device=self.device,
            world_size=self._place.world_size,
            window=(window.start.isoformat(), window.end.isoformat()),
            on_failure=self.spec.checkpoint.on_failure,
            patience_s=self.spec.checkpoint.commit_timeout_s + self.spec.resources.hang_timeout_s,
        )
        span.note(checkpoint_mode=mode)

    def _checkpoint_restore(self, span: Span) -> None:
        """This run's newest checkpoint; else the anchor it starts from; else nothing."""
        state = self.trainee.state()
        found = self.saver.checkpointer.restore_newest(state)
        warm_start = self._run.run.warm_start
        if found:
            self._resume = found.progress
            span.note(source="checkpoint", step=found.progress.step, cursor=found.progress.cursor)
        elif warm_start:
            restore(CheckpointRef.open(warm_start.anchor), state, process_group=self.groups.control)
            span.note(source="anchor", anchor=warm_start.anchor)
            if self._leads:
                self._recorder.point("warm_start", anchor=warm_start.anchor, run=warm_start.run)
        else:
            if not self._synced:  # the checkpoint that was there turned out to be damaged
                sync_dense_state(self.trainee.dmp)
            initialize_tables(state["model"], self._tables, seed=self.spec.training.seed)
            span.note(source="seed")

    def _pre_train_setup(self, span: Span) -> None:
        """Set the loop up at the restored position."""
        resumed = self._resume
        shares = self._shares_of(resumed)
        if shares != self._shares:  # the newest checkpoint was rejected, an earlier one holds
            self.reader.close()
            self._start_reading(shares)
        if metrics := self._metrics_of(resumed):
            self.saver.quality.load_json(metrics)
        step = resumed.step if resumed else 0
        self.position = Position(step=step, cursor=resumed.cursor if resumed else 0, remaining=self._share)
        own = self._own(resumed)
        self.saver.checkpointer.preallocate(self.trainee.state())
        self.loop = TrainingLoop(
            trainee=self.trainee,
            batches=self._batches(),
            steps=self._steps,
            smallest_batch=self._smallest_batch,
            keys=sparse_keys(self.spec),
            device=self.device,
            rank=self._place.rank,
            control=self.groups.control,
            position=self.position,
            quality=self.saver.quality,
            saver=self.saver,
            save_interval_s=self.spec.checkpoint.interval_s,
            preemption=self._preemption,
            recorder=self._recorder,
            watch=self._watch,
            losses=LossWatch(rank=self._place.rank, plan=self.plan, device=self.device),
            generators=GeneratorStart(
                seed=self.spec.training.seed,
                place=self._place,
                device=self.device,
                step=step,
                saved=own.random if own else {},
            ),
            watchdog=self._watchdog,
        )
        span.note(steps=self._steps, step=self.position.step, cursor=self.position.cursor)

    def _compile_ahead(self, span: Span) -> None:
        """On the fast batch, before anything is known of the data: also where no step turns out to be left."""
        with self._compiling(span):
            compile_ahead(self.spec, self._choice, self.device)

    def _compile_on_first_batch(self, span: Span) -> None:
        """On the first real batch, which the loop then trains on; every rank compiles, whatever its own batch."""
        if not self._steps:
            return
        first = self._first[0]
        rows, failed = (0, 1) if isinstance(first, DppError) else (first.rows, 0)
        facts = agree(StepFacts(rows=rows, data_failed=failed), self.groups.compiling)
        if facts.data_failed or isinstance(first, DppError):  # the loop tells all ranks of it
            return
        keys = sparse_keys(self.spec)
        with self._compiling(span):
            rows = max(2, facts.largest, self._smallest_batch)
            batch = to_tensors(padded(first, rows, keys=len(keys)), keys, self.device)
            tower.compile_now(self.trainee.dmp.module, self._forwards, batch.dense, batch.sparse)

    @contextlib.contextmanager
    def _compiling(self, span: Span) -> Iterator[None]:
        """Into the cache of this attempt, which one rank of a node fills and one rank of all keeps. Collective."""
        self._prepare_compiler()
        lookup = self._compile_cache.fill() if self._place.local_rank == 0 else None
        dist.barrier(group=self.groups.compiling)
        yield
        used = GraphCacheUse.so_far()
        span.note(compilations=self._watch.compilations, shapes=self._choice.shapes, **asdict(used))
        dist.barrier(group=self.groups.compiling)  # other ranks may still write the folder that rank 0 archives
        if self._leads:
            archived = self._compile_cache.keep(used)
            changed = self._compile_cache.missed(lookup, used)
            self._recorder.point("compile_cache", **cache_attrs(lookup, used, archived, changed))

    def _first_batch(self, span: Span) -> None:
        """The loop's first; data that failed are left to the loop, which tells all ranks of it at once."""
        if not self._steps:
            return
        try:
            first = next(self.reader)
        except DppError as error:
            self._first = [error]
            span.note(failed=str(error)[:2000])
        else:
            self._first = [first]
            span.note(rows=first.rows)

    # -- at the end -----------------------------------------------------------------------------------------------

    @property
    def has_progressed(self) -> bool:
        """Whether there is anything to save that the restored checkpoint does not hold."""
        return self.position.step > (self._resume.step if self._resume else 0)

    def release(self) -> None:
        """Leave the process groups and delete what was kept on this node. Collective: no rank is compiling any more."""
        self._watch.stop()
        dist.barrier(group=self.groups.control)
        if self._place.local_rank == 0:
            self._compile_cache.remove()
        self.groups.close()

    # -- what they share ------------------------------------------------------------------------------------------

    @property
    def _leads(self) -> bool:
        return self._place.rank == 0

    def _own(self, resumed: Progress | None) -> RankProgress | None:
        """What this very rank saved; None where it did not: at the start, or with another number of ranks."""
        if resumed is None or resumed.world_size != self._place.world_size:
            return None
        return resumed.ranks[self._place.rank]

    def _shares_of(self, resumed: Progress | None) -> list[tuple[Interval, ...]]:
        """What each rank reads: as many ranks go on as they were, so that every step has its rows; others divide."""
        if resumed is not None and resumed.world_size == self._place.world_size:
            return [tuple(rank.remaining) for rank in resumed.ranks]
        remaining = self.plan.intervals() if resumed is None else resumed.remaining
        return [tuple(share) for share in divide(remaining, self._place.world_size)]

    def _metrics_of(self, resumed: Progress | None) -> Mapping[str, Any]:
        """This rank's own accumulators; of another number of ranks one takes all."""
        if own := self._own(resumed):
            return own.metrics
        return resumed.metrics if resumed and self._leads else {}

    def _start_reading(self, shares: list[tuple[Interval, ...]]) -> None:
        """Start prefetching this rank's share."""
        self._shares, self._share = shares, shares[self._place.rank]
        self._steps = steps_for([count(share) for share in shares], self.spec.training.batch_size)
        self.reader = PartitionReader(
            self.plan, self.spec.contract, self._share, batch_size=self.spec.training.batch_size, steps=self._steps
        )

    def _batches(self) -> Iterator[HostBatch]:
        """The first batch, which startup waits for, then the rest."""
        for first in self._first:
            if isinstance(first, DppError):
                raise first
            yield first
        yield from self.reader

    def _enter_thread(self) -> None:
        """The device, which torch keeps for each thread."""
        device: torch.device | None = getattr(self, "device", None)
        if device is not None and device.type == "cuda":  # None: the stage that finds it has only begun
            torch.cuda.set_device(device)

    def _prepare_compiler(self) -> None:
        """The compiler's settings, which torch keeps for each thread: the loop's must have what was compiled with."""
        tower.one_graph_inside_ddp()
        pruned = self._on(Technique.AUTOTUNE_PRUNING)
        use_configs(ConfigSource.COMMITTED if pruned else ConfigSource.SEARCHED)
        self._compile_cache.prepare()

    @cached_property
    def _compile_cache(self) -> AttemptCache:
        return AttemptCache.of(
            self.spec,
            self._attempt.run_folder,
            folder=self._attempt.local_folder / f"compile-a{self._attempt.number}",
            device=self.device.type,
            threads=self._place.threads,
        )
