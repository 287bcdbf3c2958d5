"""``chimera demo`` needs no file and no network, and shows that something was learnt."""

import json
from pathlib import Path


def test_four_local_workers_learn_the_digits_through_a_parameter_server(start):
    process = start("demo", "--json")
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    summary = json.loads(stdout)
    assert (summary["strategy"], summary["engine"], summary["workers"]) == ("parameter-server", "local", 4)
    assert summary["lost_workers"] == 0
    assert summary["metrics"]["accuracy"] >= 0.95
    report = stderr.splitlines()[-1].removeprefix("report:").strip()
    assert Path(process.args[0]).exists()
    assert report.endswith("report.html")
