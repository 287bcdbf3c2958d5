"""A Sphinx extension that writes the reference from the code: options, commands, interfaces, errors and terms.

Pages are written to ``docs/reference/generated`` before Sphinx reads the documents. `chimera_reference.generation.pages`
returns their text without Sphinx.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from chimera_reference.generation import write

_CONFIGURATION = {
    "autodoc_member_order": "bysource",
    "autodoc_preserve_defaults": True,
    "autodoc_typehints": "description",
    "autodoc_typehints_description_target": "documented_params",
    "maximum_signature_line_length": 88,
    "python_use_unqualified_type_names": True,
}


def setup(app: Any) -> dict[str, Any]:
    """Add the extension to Sphinx."""
    from chimera_reference.references import process_docstring, resolve_type

    app.setup_extension("sphinx.ext.autodoc")
    app.connect("config-inited", _configure)
    app.connect("builder-inited", _write)
    app.connect("autodoc-process-docstring", process_docstring)
    app.connect("missing-reference", resolve_type)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _configure(_app: Any, config: Any) -> None:
    for name, value in _CONFIGURATION.items():
        setattr(config, name, value)


def _write(app: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of plug-ins of other distributions, which the pages leave out
        write(Path(app.srcdir))
