"""Jobs for tests."""

from __future__ import annotations

from typing import Any

from chimera.jobs.store.records import Job, Submission


def submission(name: str = "digits", user: str = "ada", **given: Any) -> Submission:
    """Return the submission of an experiment without files."""
    return Submission(name=name, user=user, experiment='[data]\nname = "digits"\n', **given)


def job(number: int = 1, **given: Any) -> Job:
    """Return a queued job, with the given fields of its submission and its state."""
    own = {key: given.pop(key) for key in list(given) if key in Submission.__struct_fields__}
    return Job(id=str(number), submission=submission(**own), **{"since_s": 0.0, "submitted_s": 0.0, **given})
