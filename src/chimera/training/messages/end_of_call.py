"""Messages by which servers and workers of a group end an exchange."""

from __future__ import annotations

from typing import Final

END_OF_CALL: Final = "end of call"
"""A server needs no further gradient in this call. The worker sends it back, and its call returns."""

LEAVES: Final = None
"""The sender, or another member, has failed: all calls on this group return."""
