"""Time slices (EEVDF, Stoica and Abdel-Wahab 1995): who is woken should run at once, and not when another has used up his.

Linux leaves a process alone until it has used its slice of a millisecond or more, which is longer than a whole step of a small
network: where as many workers compute as there are cores, a driver or a server that is woken waits for one of them.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys

SLICE_S = 300e-6
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}  # sched_setattr, sched_getattr
_ATTRIBUTES = struct.Struct("IIQiIQQQ")  # size, policy, flags, niceness, priority, slice in ns, deadline, period
_SHARED = (0, 3)  # the policies that know slices: SCHED_OTHER, SCHED_BATCH


def ask_for_short_slices() -> None:
    """Have the scheduler give short slices to this thread, and to what it starts or forks from now on.

    It costs others nothing: how much of a core somebody gets is a matter of niceness. Linux before 6.12, and other systems,
    know no such wish, and all stays as it is.
    """
    if sys.platform != "linux" or platform.machine() not in _CALLS:
        return
    set_attributes, get_attributes = _CALLS[platform.machine()]
    attributes, system = ctypes.create_string_buffer(_ATTRIBUTES.size), ctypes.CDLL(None).syscall
    if system(get_attributes, 0, attributes, _ATTRIBUTES.size, 0):
        return
    size, policy, _, niceness, *_ = _ATTRIBUTES.unpack(attributes.raw)
    if policy in _SHARED:  # who asked for another one knows why
        system(set_attributes, 0, _ATTRIBUTES.pack(size, policy, 0, niceness, 0, round(SLICE_S * 1e9), 0, 0), 0)
