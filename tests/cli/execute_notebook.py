"""Executes the cells in a JSON list on stdin in a real kernel of this interpreter; writes the outputs of each cell as JSON.

The libraries of notebooks leave sockets open, so tests run this file in a process of its own.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import nbclient
import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager


class Kernel(AsyncKernelManager):  # type: ignore[misc]
    """A kernel that need not be installed."""

    @property
    def kernel_spec(self) -> Any:
        start = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=start, language="python", display_name="python")


cells = [nbformat.v4.new_code_cell(cell) for cell in json.load(sys.stdin)]
nbclient.NotebookClient(nbformat.v4.new_notebook(cells=cells), km=Kernel(), timeout=100).execute()
json.dump([cell.outputs for cell in cells], sys.stdout)
