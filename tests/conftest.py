"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("shared-machine", deadline=None)  # how long an example takes says nothing on a busy machine
settings.load_profile("shared-machine")
