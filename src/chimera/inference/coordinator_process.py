"""The process of a coordinator or standby, run as a module. It exits when its stdin closes."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

from chimera.core.address import host_in_url
from chimera.core.errors import ChimeraError
from chimera.core.private import UMASK
from chimera.engines.parent_watch import exit_with_parent
from chimera.inference.autoscale import INTERVAL_S, Autoscale, ScaleCopy
from chimera.inference.candidate import Candidate
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.journal.journal import Journal
from chimera.inference.memory import available_bytes
from chimera.inference.periodic import Periodic
from chimera.inference.remote_workers.protocol import PATH as DIAL
from chimera.inference.remote_workers.protocol import worker_token


def _journal(folder: ClusterFolder, voters: str, voter: str | None) -> Journal:
    if voter:
        from chimera.inference.journal.raft.journal import RaftJournal

        own_folder = folder.voter / voter.replace(":", "-")
        return RaftJournal(voters.split(","), voter, folder.token(), own_folder)
    from chimera.inference.journal.sqlite import SqliteJournal

    return SqliteJournal(folder.journal)


def _url(host: str, port: int) -> str:
    return f"http://{host_in_url(host)}:{port}"


def main() -> None:
    """Serve until SIGTERM, or until an error ends the process with code 1 and a line on stderr."""
    exit_with_parent()
    os.umask(UMASK)
    try:
        failure = _serve(_options())
    except (ChimeraError, OSError) as error:
        failure = str(error)
    if failure is not None:
        with contextlib.suppress(OSError):  # a full disk: the supervisor reports it
            sys.stderr.write(f"chimera: error: {' '.join(failure.split())}\n")
            sys.stderr.flush()
        raise SystemExit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cluster", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--policy", default="fair-share")
    parser.add_argument("--fair-by", default="queries")
    parser.add_argument("--ray", metavar="ADDRESS", help="use actors of the Ray cluster at ADDRESS as workers")
    parser.add_argument(
        "--voters", default="", help="addresses of the three voters of the journal, separated by commas"
    )
    parser.add_argument("--voter", help="address of this process's voter")
    parser.add_argument("--keep-s", type=float, help="seconds after its end until a job is deleted; default: never")
    parser.add_argument("--no-code", action="store_true", help="refuse models that run code of their own")
    parser.add_argument("--forwarded", action="store_true", help="connections come from an address beyond loopback")
    parser.add_argument("--fetch-models", action="store_true", help="send folders of models to other machines")
    return parser.parse_args()


def _serve(options: argparse.Namespace) -> str | None:
    """Serve until SIGTERM; return the error that has ended the candidate, or None."""
    from chimera.inference.api.cluster_routes import cluster_router
    from chimera.inference.api.job_routes import jobs_router
    from chimera.inference.api.metrics import ClusterMetrics
    from chimera.inference.api.openai_routes import ERROR_FORMS, openai_router
    from chimera.inference.api.serving_routes import QuerySender, serving_router
    from chimera.inference.api.submission_routes import submissions_router
    from chimera.inference.page.data import SAMPLE_S, RateHistory
    from chimera.inference.page.routes import bare_page_router, page_router
    from chimera.inference.remote_workers.routes import dial_router
    from chimera.web.app import create_app, serve
    from chimera.web.metrics import Metrics

    folder = ClusterFolder(options.cluster)
    os.chdir(folder.logs(options.name))  # the logs are written there
    access = folder.access()
    if options.ray:
        from chimera.engines.ray.session import Session

        Session.enter(address=options.ray)
    candidate = Candidate(
        options.name, folder, options.policy, fair_by=options.fair_by, ray=bool(options.ray),
        journal=lambda: _journal(folder, options.voters, options.voter), keep_s=options.keep_s,
        code=not options.no_code, shares_files=not options.voter,
    )  # fmt: skip
    metrics = Metrics()
    metrics.registry.register(ClusterMetrics(candidate.leader))
    query_sender = QuerySender(candidate.leader, metrics)
    history = RateHistory(candidate.leader)
    periodic = [
        Periodic("the rates", SAMPLE_S, history.sample),
        Periodic("autoscaling", INTERVAL_S, Autoscale(candidate.leader, folder).decide),
    ]
    if options.voters:
        periodic.append(Periodic("the number of workers", INTERVAL_S, ScaleCopy(candidate.leader, folder).copy))
    host = options.voter.rpartition(":")[0].strip("[]") if options.voter else "127.0.0.1"

    def free_memory() -> int | None:
        return None if options.ray or options.voters else available_bytes()  # None: workers may run on other machines

    app = create_app(
        title=f"Chimera inference {options.name}",
        settings=access,
        routers=[
            jobs_router(candidate.leader, candidate.rows),
            submissions_router(candidate.leader),
            cluster_router(candidate.leader, folder, free_memory),
            dial_router(candidate.leader, candidate.remote, shares_models=options.fetch_models),
            page_router(candidate.leader, history, folder.path / "logs"),
            serving_router(query_sender),
            openai_router(query_sender),
        ],
        public=[bare_page_router()],
        forwarded=options.forwarded,
        limited_tokens={f"{DIAL}/": worker_token(access.token)},
        about=candidate.about,
        metrics=metrics,
        error_forms=ERROR_FORMS,
    )
    try:
        for each in periodic:
            each.start()
        serve(
            app, host=host, port=0, settings=access,
            on_started=lambda: candidate.start(_url(*app.state.address), lambda: app.state.stop()),
        )  # fmt: skip
    finally:
        for each in periodic:
            each.stop()
        candidate.stop()
    return candidate.failure


if __name__ == "__main__":
    main()
