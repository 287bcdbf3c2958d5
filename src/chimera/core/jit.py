"""Compilation of kernels by numba. Only kernels import this module, because it imports numba."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic

_LOCK_TIMEOUT_S, _RETRY_S = 120.0, 0.02
_held: set[str] = set()  # the files whose lock this process holds

F, N, U, B, H = np.float32, np.int32, np.uint32, np.uint8, np.uint16


def njit(function: Any, *, forceinline: bool = False, fastmath: Any = False) -> Any:
    """Compile a function, once for all processes and runs if the disk is writable."""
    options = {"nogil": True, "error_model": "numpy", "forceinline": forceinline, "fastmath": fastmath}
    try:
        return _one_process_at_a_time(numba.njit(cache=True, **options)(function))
    except RuntimeError:  # no folder is writable
        return numba.njit(**options)(function)


def _one_process_at_a_time(compiled: Any) -> Any:
    """Lock the functions of a file so that one process at a time compiles them: the others then load them from the disk."""
    compile_it, path = compiled.compile, compiled.py_func.__code__.co_filename

    def compile_under_lock(signature: Any) -> Any:
        with global_compiler_lock, _file_lock(path):
            return compile_it(signature)

    compiled.compile = compile_under_lock
    return compiled


@contextlib.contextmanager
def _file_lock(path: str) -> Iterator[None]:
    """Wait for the lock of a file, up to a time limit, and hold it. The same process may hold it already, for a caller."""
    with contextlib.ExitStack() as stack:
        if path not in _held:
            with contextlib.suppress(OSError):  # some file systems have no locks
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, file)
                _lock(file)
                stack.callback(fcntl.flock, file, fcntl.LOCK_UN)  # a process forked meanwhile still has the file open
            _held.add(path)
            stack.callback(_held.discard, path)
        yield


def _lock(file: int) -> None:
    deadline_s = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_RETRY_S)


def inlined(function: Any) -> Any:
    """Compile a function into its callers: if it is called once per block, passing its arrays takes longer than its work."""
    return njit(function, forceinline=True)


def reordered(function: Any) -> Any:
    """Compile with sums in the order that is fastest on this processor; NaN and infinity are kept."""
    return njit(function, fastmath={"reassoc", "contract", "nsz"})


@intrinsic
def as_bits(typing: Any, value: Any) -> Any:
    """Return the bits of a float32 as uint32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return numba.types.uint32(numba.types.float32), generate


@intrinsic
def as_float(typing: Any, value: Any) -> Any:
    """Return the float32 that has these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return numba.types.float32(numba.types.uint32), generate


@intrinsic
def prefetch(typing: Any, x: Any, begin: Any, count: Any) -> Any:
    """Prefetch ``count`` float32 from an index on into the cache, up to the end of the array, without waiting."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = context.make_array(signature.args[0])(context, builder, arguments[0])
        size = builder.extract_value(source.shape, 0)
        end = builder.add(arguments[1], arguments[2])
        end = builder.select(builder.icmp_signed("<", end, size), end, size)
        number = ir.IntType(32)
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        with cgutils.for_range_slice(builder, arguments[1], end, ir.Constant(end.type, 16), inc=True) as (index, _):
            place = builder.bitcast(builder.gep(source.data, [index]), pointer)
            builder.call(
                fetch, [place, number(0), number(2), number(1)]
            )  # the arguments mean: for reading, into the second-level cache, data
        return context.get_dummy_value()

    return numba.types.void(x, numba.types.intp, numba.types.intp), generate
