"""The execution of an experiment: its engine, data, cluster and loop, from the start of the engine to the result."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from chimera.core.counted import counted
from chimera.core.engine import Engine
from chimera.core.errors import RunError
from chimera.core.imports import without_gc
from chimera.core.safe_path import safe_path
from chimera.core.stop_signals import terminable
from chimera.data.description import described
from chimera.data.split import Split
from chimera.models.model import Model
from chimera.training.artifacts.checkpoint import Checkpoints, check_fits
from chimera.training.artifacts.folder import RunFolder
from chimera.training.artifacts.result import Run
from chimera.training.artifacts.signature import FILE, Signature
from chimera.training.assembly import Assembly
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.cluster.heartbeat import HeartbeatMonitor
from chimera.training.experiment.experiment import Experiment
from chimera.training.experiment.resolve import (
    check_data,
    configured,
    model_of,
    nodes_data_of,
    open_engine,
    preload_of,
    split_of,
)
from chimera.training.experiment.settings import Settings
from chimera.training.fault_tolerance.attendance import Attendance
from chimera.training.fault_tolerance.injection import FaultScript, check_attacks, check_disturbances
from chimera.training.fault_tolerance.recovery import Recovery
from chimera.training.inspection import counts_of_run, hidden
from chimera.training.nodes_data.agreed import AgreedData
from chimera.training.nodes_data.declared import Reports, declare
from chimera.training.nodes_data.evaluation import check_metrics
from chimera.training.nodes_data.preparation import agreed_data
from chimera.training.plugin import Named, label
from chimera.training.privacy.guarantee import Guarantee
from chimera.training.progress.callback import Callback, notify
from chimera.training.progress.history import History
from chimera.training.progress.metric_monitor import MetricMonitor
from chimera.training.run.evaluator import Evaluator
from chimera.training.run.first_calls import first_calls
from chimera.training.run.gc_freeze import frozen_gc, rare_gc
from chimera.training.run.intervals import Intervals
from chimera.training.run.loop import TrainingLoop
from chimera.training.run.result import result_of
from chimera.training.tracking.tracking import Tracking
from chimera.training.worker.shared_parameters import SharedParameters


class Execution:
    """Executes one experiment.

    Parameters
    ----------
    settings : settings of the experiment, without settings that follow from the model and the size of the data.
    folder : the run's folder.
    model, data, engine : see the arguments of `Trainer`.

    Attributes
    ----------
    settings : settings of the experiment; during and after `run`, the settings that it uses.
    folder, model, data, engine : the arguments.
    """

    def __init__(self, settings: Settings, folder: RunFolder, *, model: Any, data: Any, engine: Named | Engine) -> None:
        self.settings, self.folder = settings, folder
        self.model, self.data, self.engine = model, data, engine
        self._recovery: Recovery | None = None
        self._stop = threading.Event()

    @property
    def title(self) -> str:
        """The names of data, model, strategy, codec and engine, and the number of workers."""
        names = [label(self.data), label(self.model), *map(str, list(self._names().values())[:-1])]
        return " · ".join([*names, self._workers])

    def add_worker(self) -> None:
        """Add a worker as soon as the engine has room; see `Trainer.add_worker`."""
        recovery = self._recovery  # read once: the run may end meanwhile
        if recovery is None:
            raise RunError("no run is in progress that a worker could join")
        recovery.request_worker()

    def stop(self) -> None:
        """End the run after the rounds in flight; see `Trainer.stop`."""
        self._stop.set()

    def run(self, callbacks: Sequence[Callback]) -> Run:
        """Train, write the run's folder and its report, and return the result; `Trainer.fit` lists the errors."""
        self.folder = self.folder.free()
        with terminable(), self.folder.opened():
            if not self.settings.trackers:
                return self._run(callbacks)
            tables = self._experiment().tables
            with Tracking(self.settings.trackers, settings=tables, folder=lambda: self.folder.path) as tracking:
                return self._run([*callbacks, tracking])

    def _run(self, callbacks: Sequence[Callback]) -> Run:
        settings = self.settings
        # The engine starts before the data is loaded: its processes import libraries meanwhile.
        codecs = settings.codec[0], settings.downlink[0]
        notify(callbacks, "on_wait", f"the engine {label(self.engine)}")
        engine, owned = open_engine(self.engine, preload_of(self.data, self.model, codecs))
        try:
            split = self._split(engine, callbacks)
            model = self._model(engine, split)
            self._announce(engine, split, model, callbacks)
            self._begin_folder(split, callbacks)
            checkpoints = Checkpoints(str(safe_path(self.folder.path, "checkpoints")))
            saved = checkpoints.read_last() if self.folder.resumes else None
            if saved:
                check_fits(saved, model)
            settings = self.settings
            monitor = HeartbeatMonitor(engine, settings.tolerance.worker_timeout_s)
            notify(callbacks, "on_wait", f"{self._workers} on the engine {label(self.engine)}")
            with rare_gc(settings.workers if engine.one_process else 0):
                return self._executed(engine, owned, monitor, split, model, checkpoints, saved, callbacks)
        finally:
            if owned:
                engine.close()

    def _executed(
        self,
        engine: Engine,
        owned: bool,
        monitor: HeartbeatMonitor,
        split: Split,
        model: Model,
        checkpoints: Checkpoints,
        saved: dict[str, Any] | None,
        callbacks: Sequence[Callback],
    ) -> Run:
        """Start the workers, train, and return the result. The workers end with the run."""
        settings = self.settings
        assembly = Assembly(settings, engine, model, split.train, saved)
        cluster = assembly.cluster(monitor)
        try:
            agreed: Any = split.train
            counts: Any = counts_of_run(settings, agreed, cluster.orders)
            if isinstance(agreed, AgreedData):
                counts = agreed.shown(rows=not hidden(settings))
            self.folder.describe_data(counts)
            return self._train(
                engine, monitor, cluster, split, model, checkpoints, saved, assembly.train_size, callbacks
            )
        except KeyboardInterrupt as error:
            if checkpoints.paths():
                again = f"out={str(self.folder.location)!r}, resume=True"
                error.add_note(f"the run has a checkpoint; to resume, call it again with {again}")
            raise
        finally:
            self._end_recovery()
            if not owned:
                cluster.end()

    def _split(self, engine: Engine, callbacks: Sequence[Callback]) -> Split:
        """Load the data, and check that the workers can train on it."""
        settings = self.settings
        check_disturbances(settings.faults, engine)
        notify(callbacks, "on_wait", f"the data {label(self.data)}")
        resumes = (self.folder.path / FILE).exists() if self.folder.resumes else None
        say = partial(notify, callbacks, "on_notice")
        declare(engine, settings, self.model, say, resumes=resumes)
        declared = nodes_data_of(self.data) if engine.nodes_own_data else None
        if declared is not None:
            before = Signature.read(self.folder.path).inputs if resumes else None
            agreed: Any = agreed_data(engine, declared, self.model, settings, before)
            split = Split(agreed, agreed)
        else:  # nodes train on their own rows, so the rows of the driver's test set stay as they are, too
            Attendance(engine).begin(settings.workers)
            split = split_of(self.data, settings.seed, False if engine.nodes_own_data else "auto")
        check_data(
            split.train,
            settings.workers,
            settings.tolerance,
            nodes_own_data=engine.nodes_own_data,
            test_share=settings.test_per_client,
        )
        check_attacks(settings.faults, settings.strategy, split.train)
        return split

    def _model(self, engine: Engine, split: Split) -> Model:
        """Make the model, complete the settings by the values that follow from it, and check both."""
        with without_gc():  # it imports the library of the model
            built = model_of(self.model, split.train, self.settings.seed)
        model = configured(built, self.settings.compute)
        train_size = None if engine.nodes_own_data else len(split.train)
        self.settings = settings = self.settings.following(model, train_size)
        settings.check_optimizers()
        agreed: Any = split.test
        if isinstance(agreed, AgreedData):
            check_metrics(model, agreed.averaged)
        settings.peak.check(model, private=settings.privacy is not None)
        if settings.privacy is not None:
            settings.privacy.check_model(model, settings.strategy)
        return model

    def _announce(self, engine: Engine, split: Split, model: Model, callbacks: Sequence[Callback]) -> None:
        """Describe the data and the optimizers. This follows all checks, so that a user's mistake gives one line only."""
        agreed: Any = split.train
        if isinstance(agreed, AgreedData):
            notify(callbacks, "on_data", agreed.line)
        elif not engine.nodes_own_data:
            notify(callbacks, "on_data", described(split))
        for notice in filter(None, (self.settings.optimizers, getattr(model, "notice", None))):
            notify(callbacks, "on_notice", notice)

    def _experiment(self) -> Experiment:
        return Experiment.of(**self.settings.table, data=self.data, model=self.model, engine=self.engine)

    def _begin_folder(self, split: Split, callbacks: Sequence[Callback]) -> None:
        experiment = self._experiment().to_toml()
        if changes := self.folder.changes(experiment):
            notify(callbacks, "on_notice", f"resumes with other settings: {changes}")
        self.folder = self.folder.begin(experiment, self.settings.seed, Signature.of(split))

    def _train(
        self,
        engine: Engine,
        monitor: HeartbeatMonitor,
        cluster: TrainingCluster,
        split: Split,
        model: Model,
        checkpoints: Checkpoints,
        saved: dict[str, Any] | None,
        train_size: int,
        callbacks: Sequence[Callback],
    ) -> Run:
        settings = self.settings
        self._recovery = Recovery(engine, cluster, monitor, settings.tolerance)
        sizes = first_calls(engine, monitor, cluster, self._recovery)
        train_size = train_size or sum(sizes)  # 0 where nodes own the data
        engine.trace()
        history = History(self.folder.path, saved["files"] if saved else None)
        guarantee, kept = Guarantee(settings.privacy), settings.strategy.keeps(model)
        watched = MetricMonitor(settings.stopping, cluster.schedules)
        evaluator = Evaluator(
            engine,
            monitor,
            settings.strategy,
            cluster,
            model=model,
            test=split.test,
            buffers=getattr(model, "buffer_policy", "none"),
            part=SharedParameters(model.layout, kept) if kept else None,
            clients=settings.evaluate_clients,
        )
        rounds = train_size / settings.samples_per_round(settings.workers, train_size)
        loop = TrainingLoop(
            engine=engine,
            monitor=monitor,
            strategy=settings.strategy,
            cluster=cluster,
            evaluator=evaluator,
            train_size=train_size,
            batch_size=settings.batch_size,
            budget=settings.budget,
            intervals=Intervals.of(
                settings.budget, rounds, settings.workers, virtual_time=engine.virtual_time, **settings.every
            ),
            history=history,
            checkpoints=checkpoints,
            callbacks=[*callbacks, Reports(engine), *self.folder.recorded(history, callbacks)],
            recovery=self._recovery,
            faults=FaultScript(settings.faults),
            guarantee=guarantee,
            watched=watched,
            peak=settings.peak,
            stop_requested=self._stop.is_set,
        )
        try:
            if saved:
                loop.restore(saved)
            with frozen_gc(len(cluster.workers) if engine.one_process else 0):
                stopped_by = loop.run()
        finally:
            self._end_recovery()
            history.close()
        run = result_of(
            loop, engine, settings, split, model, history=history, guarantee=guarantee, location=self.folder.location,
            names=self._names(), stopped_by=stopped_by, train_size=train_size,
        )  # fmt: skip
        self.folder.finish(run)
        notify(callbacks, "on_end", run)
        return run

    def _end_recovery(self) -> None:
        """End the pending workers of this run. No worker can join it any more."""
        recovery, self._recovery = self._recovery, None
        if recovery is not None:
            recovery.end()

    def _names(self) -> dict[str, Any]:
        return {
            "strategy": label(self.settings.table["strategy"]),
            "codec": self.settings.codec[0],
            "engine": label(self.engine),
            "workers": self.settings.workers,
        }

    @property
    def _workers(self) -> str:
        return counted(self.settings.workers, "worker")
