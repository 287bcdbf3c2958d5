"""The imports from pysyncobj, without its patch of `socket.inet_ntop`.

Its module ``win_inet_pton`` (0.3.17) replaces that function on every system by one that works on Windows only. Other
libraries in the process, such as psutil, would fail.
"""

from __future__ import annotations

import sys
from types import ModuleType

if sys.platform != "win32":
    sys.modules.setdefault("pysyncobj.win_inet_pton", ModuleType("pysyncobj.win_inet_pton"))

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf
from pysyncobj.config import SERIALIZER_STATE
from pysyncobj.node import Node
from pysyncobj.poller import POLL_EVENT_TYPE
from pysyncobj.syncobj import AsyncResult
from pysyncobj.transport import Transport

__all__ = [
    "FAIL_REASON",
    "POLL_EVENT_TYPE",
    "SERIALIZER_STATE",
    "AsyncResult",
    "Node",
    "SyncObj",
    "SyncObjConf",
    "Transport",
]
