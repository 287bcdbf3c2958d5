"""Settings of Sphinx for the site: `make docs` runs `sphinx`, which writes it into docs/_build/html."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_extensions")]
PROGRAMS = str(Path(sys.executable).parent)
os.environ["PATH"] = os.pathsep.join([PROGRAMS, os.environ.get("PATH", "")])  # cells run the command `chimera`

from chimera.version import __version__  # noqa: E402


def digest(folder: Path) -> str:
    """Return a digest of the files of Python and TOML in a folder."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".toml"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


project = "Chimera"
author = "The Chimera developers"
copyright = "The Chimera developers"  # noqa: A001
version = release = __version__

extensions = ["myst_nb", "sphinx_copybutton", "repository_links", "chimera_reference"]
exclude_patterns = ["_build", "_extensions", "**/.ipynb_checkpoints"]
nitpicky = True

# Markdown. Anchors are those of a repository browser, so that one link works in both places.
myst_heading_anchors = 6
myst_enable_extensions = ["colon_fence"]
myst_links_external_new_tab = False

# Notebooks are executed, each in a folder of its own. The results stay valid until the notebook or the source changes.
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "executed" / digest(HERE.parent / "src"))
nb_execution_in_temp = True
nb_execution_timeout = 300  # seconds for a cell
nb_execution_show_tb = True  # and a warning, which ends the build by `-W` when all notebooks have been executed
nb_merge_streams = True
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # the default loads scripts from the network

html_theme = "furo"
html_title = "Chimera"
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/icon.svg"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {
        "color-brand-primary": "#1f5f99",
        "color-brand-content": "#1f5f99",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7ab8f0",
        "color-brand-content": "#7ab8f0",
    },
}
copybutton_selector = "div:not(.output) > div.highlight > pre"
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
