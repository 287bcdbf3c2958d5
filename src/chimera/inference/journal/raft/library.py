"""What is used of pysyncobj, which is kept from breaking `socket.inet_ntop` on its import.

Its module ``win_inet_pton`` means to help Windows, and puts a function that works there alone in place on every system
(0.3.17). Whatever else in the process asks for the text of an address, psutil say, would fail.
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
