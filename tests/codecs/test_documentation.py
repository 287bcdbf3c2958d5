"""The codec of docs/explanation/codecs.md works as printed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "codecs.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_codec_of_the_documentation_trains(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?class EveryOther.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "my_file.py").write_text(code, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "chimera",
        "train",
        ROOT / "examples" / "digits.toml",
        "--engine",
        "simulated",
        "--json",
    ]
    command += ["--set", f"codec={tmp_path / 'my_file.py'}:EveryOther", "--out", tmp_path / "run"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False
    )  # it registers the codec, so not in this process
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bits_per_element_up"] == 16  # half of the elements, of 32 bits
