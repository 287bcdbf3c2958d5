"""Client of a Slurm cluster: the operations on jobs by Slurm's commands and the files of each job."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from chimera.core.errors import ChimeraError, ConfigurationError, ConflictError, RunError, UnavailableError
from chimera.core.private import write
from chimera.jobs.client.offline import copy_run
from chimera.jobs.client.protocol import await_end
from chimera.jobs.client.workers import workers_of
from chimera.jobs.driver.progress_file import Tail
from chimera.jobs.files.tar import MAX_BYTES
from chimera.jobs.slurm import commands
from chimera.jobs.slurm.folder import Record, SlurmFolder, SlurmJobFolder, copy_files, resolved, write_experiment
from chimera.jobs.slurm.options import SlurmOptions
from chimera.jobs.slurm.rows import PATIENCE_S, POLL_S, QUEUE_S, Queue, ask, record_end, row_in_list, row_of_job
from chimera.jobs.slurm.script import job_script, launch_of, options_in
from chimera.jobs.slurm.states import CONFIRM_S, Found, has_ended
from chimera.jobs.slurm.updates import RunLimits, RunUpdates, updates_and_lines
from chimera.jobs.store.records import Submission
from chimera.jobs.store.states import TERMINAL, Event, State, next_state

_NOT_ON_SLURM = "jobs on Slurm have no"


class SlurmClient:
    """Operations on the jobs in a folder, which run on Slurm.

    Parameters
    ----------
    folder : the folder.
    options : options of new jobs.
    """

    def __init__(self, folder: SlurmFolder, options: SlurmOptions | None = None) -> None:
        self._folder, self._options = folder, options or SlurmOptions()

    @classmethod
    def create(cls, path: Path, options: SlurmOptions) -> SlurmClient:
        """Return the client of a folder, which is created if it does not exist.

        Raises
        ------
        ConfigurationError : Slurm is not installed here, or the folder belongs to another kind of cluster.
        """
        commands.require_slurm()
        folder = SlurmFolder(path)
        folder.create()
        return cls(folder, options)

    def submit(self, submission: Submission, sources: Mapping[str, Path]) -> str:
        """Copy the files of a job into its folder, submit its script, and return its number.

        Raises
        ------
        ConfigurationError : the job cannot run on Slurm, or Slurm refuses it. No file of it is kept.
        UnavailableError : Slurm does not answer. If it may have accepted the job, the job is listed.
        """
        commands.require_slurm()
        submission = submission.checked()
        if submission.kind != "experiment":
            raise ConfigurationError(f"{_NOT_ON_SLURM} functions: submit an experiment")
        if submission.priority:
            raise ConfigurationError(f"{_NOT_ON_SLURM} priorities of Chimera: use --slurm qos=NAME or partition=NAME")
        after = [number for job in submission.after if (number := self._still_awaited(job))]
        home = self._folder.new_job()
        try:
            limits, now_s = self._prepare(home, submission, sources), time.time()
            record = Record(slurm="", limits=limits, submitted_s=now_s, since_s=now_s, mark=commands.new_mark())
            home.write_record(record)
        except BaseException:
            shutil.rmtree(home.path, ignore_errors=True)
            raise
        with home.changing():
            self._start(home, record, lambda: shutil.rmtree(home.path, ignore_errors=True), after=after)
        return home.path.name

    def _start(
        self,
        home: SlurmJobFolder,
        record: Record,
        undo: Callable[[], None],
        *,
        after: Sequence[str] = (),
        behind: str = "",
    ) -> None:
        """Submit the script of a job whose record, with the mark, is written already: this process may be killed.

        Parameters
        ----------
        undo : called if Slurm has not accepted the job.
        after, behind : see `commands.submit`.
        """
        number = ""
        try:
            number = self._submitted(home, record, after=after, behind=behind)
            home.write_record(msgspec.structs.replace(record, slurm=number))
        except commands.Unanswered:
            raise
        except (ConfigurationError, UnavailableError):
            undo()
            raise
        except BaseException:  # Ctrl-C, or a full disk: Slurm may have the job
            with contextlib.suppress(OSError):
                home.cancelled.touch(0o600)  # a job that Slurm starts later ends at once
            with contextlib.suppress(ChimeraError):
                if number := number or commands.number_of(record.mark, commands.queue()):
                    commands.cancel(number)
            raise

    def _submitted(self, home: SlurmJobFolder, record: Record, *, after: Sequence[str], behind: str) -> str:
        """Submit the script, and return Slurm's number, also if only the answer of Slurm was lost."""
        options = options_in(home.script.read_text())
        try:
            return commands.submit(home.script, options, record.mark, after=after, behind=behind)
        except commands.Unanswered as error:
            queue = ask()
            if not isinstance(queue, str) and (number := commands.number_of(record.mark, queue)):
                return number
            raise commands.Unanswered(
                f"job {home.path.name}: Slurm has not confirmed the submission ({error}): do not submit the job again; "
                f"'chimera jobs' shows within {CONFIRM_S / 60:g} minutes whether Slurm has it"
            ) from error

    def jobs(self) -> list[dict[str, Any]]:
        """Return a row for each job."""
        queue, rows = ask(), []
        for job in self._folder.jobs():
            with contextlib.suppress(ConfigurationError, FileNotFoundError):  # Slurm has just refused it
                rows.append(row_in_list(self._folder.job(job), queue))
        return rows

    def job(self, job: str) -> dict[str, Any]:
        """Return the row of a job."""
        return row_of_job(self._folder.job(job), ask())

    def processes(self) -> list[dict[str, Any]]:
        """Return a row for each job that Slurm has; ``pid`` is Slurm's number."""
        rows = [row for row in self.jobs() if row["state"] not in TERMINAL]
        return [
            {
                "role": "slurm job",
                "name": row["name"],
                "pid": row["slurm"],
                "state": row["state"],
                "job": row["job"],
                "host": ",".join(row["on"]),
            }
            for row in rows
        ]

    def cancel(self, job: str) -> str:
        """Cancel a job, and return its number."""
        home = self._folder.job(job)
        with home.changing():
            self._cancel(home)
        return job

    def _cancel(self, home: SlurmJobFolder) -> None:
        self._check(home, Event.CANCEL)
        record = home.record()
        home.cancelled.touch(0o600)  # first, so that a script that is about to requeue the job does not train again
        try:
            if record.slurm:
                commands.cancel(record.slurm)
        except ChimeraError:
            home.cancelled.unlink(missing_ok=True)
            home.write_record(record)
            raise
        record_end(home, Found(State.CANCELLED), record.slurm)

    def retry(self, job: str) -> str:
        """Submit a job again that failed or was cancelled, and return its number; it resumes from its checkpoint."""
        home = self._folder.job(job)
        with home.changing():
            self._retry(home)
        return job

    def _retry(self, home: SlurmJobFolder) -> None:
        self._check(home, Event.RETRY)
        record, queue = home.record(), commands.queue()
        left_s = record.since_s + CONFIRM_S - time.time()
        if not record.slurm and left_s > 0:
            raise ConflictError(
                f"job {home.path.name}: Slurm may still accept its last submission: retry it in {left_s:.0f} s"
            )
        was_cancelled = home.cancelled.exists()

        def undo() -> None:
            if was_cancelled:  # a script that Slurm requeues must not train
                home.cancelled.touch(0o600)
            home.write_record(record)

        row, last = queue.get(record.slurm), home.attempts.last
        behind = record.slurm if row is not None and not has_ended(row) else ""
        if behind:
            with contextlib.suppress(RunError):  # if it was cancelled before Slurm confirmed it, it could still start
                commands.cancel(behind)
        home.allow_again()
        again = msgspec.structs.replace(
            record,
            slurm="",
            since_s=time.time(),
            ended=None,
            mark=commands.new_mark(),
            earlier=last.job if last else "",
        )
        home.write_record(again)
        self._start(home, again, undo, behind=behind)

    def follow(self, job: str, *, from_start: bool = True) -> Iterator[dict[str, Any]]:
        """Yield the updates of a job until it ends: ``{"job": row}``, ``{"log": line}`` or ``{"told": update}``.

        Raises
        ------
        UnavailableError : Slurm does not answer within `PATIENCE_S`.
        """
        home = self._folder.job(job)
        if home.record().ended is None:
            commands.require_slurm()
        updates, log = RunUpdates(home.run, home.record().limits, from_start=from_start), Tail(home.log)
        if not from_start:
            log.to_end()
        shown: tuple[Any, ...] = ()
        attempts, asked_s, answered_s = home.attempts, -QUEUE_S, time.monotonic()
        queue: Queue = {}
        while True:
            now_s, started = time.monotonic(), home.attempts
            if started != attempts or now_s >= asked_s + QUEUE_S:
                queue, asked_s = ask(), now_s
                answered_s = answered_s if isinstance(queue, str) else now_s
            if started.count > attempts.count:
                updates.attempt_started()
            attempts = started
            row = row_of_job(home, queue)
            ended = row["state"] in TERMINAL
            yield from updates_and_lines(updates, log, ended=ended)
            if (state := (row["state"], row["reason"], row["attempt"])) != shown:
                shown = state
                if ended and row["state"] == State.DONE and (summary := updates.summary()) is not None:
                    yield {"told": {"summary": summary}}
                yield {"job": row}
            if ended:
                return
            if isinstance(queue, str) and now_s > answered_s + PATIENCE_S:
                raise UnavailableError(f"job {job}: {queue}")
            time.sleep(POLL_S)

    def fetch(self, job: str, folder: Path, max_bytes: int = MAX_BYTES) -> list[str]:
        """Copy the current folder of a job's run to ``folder``; return the names of its files."""
        return copy_run(self._folder.job(job), folder, max_bytes)

    def wait(self, job: str, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait until a job has ended, and return its row.

        Raises
        ------
        TimeLimitError : the job has not ended within ``timeout_s`` seconds.
        """
        return await_end(self, job, timeout_s, QUEUE_S)

    def _prepare(self, home: SlurmJobFolder, submission: Submission, sources: Mapping[str, Path]) -> RunLimits:
        """Write the files of a job, and return the limits of its run."""
        copy_files(self._folder.path / "files", submission.manifest, sources, submission.experiment, home.code)
        experiment = resolved(home.code, submission.settings)
        workers = workers_of(experiment)
        launch = launch_of(experiment.tables, workers, self._options)
        if launch.mpi:
            experiment = experiment.with_table("engine", "mpi")
        write_experiment(home.path, experiment)
        home.write_submission(msgspec.structs.replace(submission, workers=workers))
        write(home.script, job_script(home.path, submission.name, self._options, launch).encode())
        return RunLimits.of(experiment.tables)

    def _still_awaited(self, job: str) -> str:
        """Return Slurm's number of a job that must succeed first; empty if it has succeeded."""
        row = self.job(job)
        if row["state"] in (State.FAILED, State.CANCELLED):
            raise ConflictError(f"job {job}, after which this one would run, is {row['state']}: retry it first")
        if row["state"] != State.DONE and not row["slurm"]:
            raise UnavailableError(f"job {job}, after which this one would run: {row['reason']}")
        return "" if row["state"] == State.DONE else str(row["slurm"])

    def _check(self, home: SlurmJobFolder, event: Event) -> None:
        """Check that an event is possible in the state of a job; raises ConflictError otherwise."""
        try:
            next_state(State(row_of_job(home, commands.queue())["state"]), event)
        except ConflictError as error:
            raise ConflictError(f"job {home.path.name}: {error}") from None
