"""All functions of pickle, cloudpickle and marshal that Chimera uses. No other module imports them; `tests/security` checks it.

Loading a pickle runs the code that it names, and marshal is unsafe for foreign bytes. Both are safe only for bytes that this
run's own processes have written, on a channel that no other user can write to:

- `engines/shared_memory/values`, `engines/stored`, `engines/failure`: values and exceptions between the driver and the workers
  that it started, through their memory and pipes (`simulated`, `local`). On `ray` they pass through Ray as pickles. Messages
  between actors on different machines pass over TCP connections that need a secret from Ray's store.
- `engines/local`, `engines/shared_memory/mailboxes`: descriptions of calls and messages (marshal, plain values), through the
  same memory and pipes.
- `engines/mpi`: the same between the ranks of one MPI job of one user.
- `models/module_pickling`: a module within such a value, so that its parameters are sent once.
- `models/pickling`: whether a model can be pickled; nothing is loaded.
- `remote`: results of functions on workers that the same program started.
- `data/stream`: a copy of a data set of this process, whose pickle leaves no process.
- `training/comparison`: an experiment for a process that the comparison started, over its stdin.

Data from a network, from a file, or from another user must not be loaded here: use msgspec, `engines/http/wire` or
safetensors. The names are the libraries' own functions, without a wrapper: they are on the hot path of `local`.
"""

from __future__ import annotations

from marshal import dumps as marshalled
from marshal import loads as unmarshalled
from pickle import PickleBuffer, PicklingError, Unpickler
from pickle import dumps as pickled
from pickle import loads as unpickled

from cloudpickle import Pickler as ByValuePickler
from cloudpickle import dumps as pickled_by_value

__all__ = [
    "ByValuePickler",
    "PickleBuffer",
    "PicklingError",
    "Unpickler",
    "marshalled",
    "pickled",
    "pickled_by_value",
    "unmarshalled",
    "unpickled",
]
