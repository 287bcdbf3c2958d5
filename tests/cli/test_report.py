"""``chimera report`` writes the report of a run again."""


def test_the_report_is_written_again_from_the_files(invoke, experiment, tmp_path):
    assert invoke("train", experiment, "--quiet", "--out", tmp_path / "out").exit_code == 0
    (report,) = (tmp_path / "out").rglob("report.html")
    report.unlink()
    result = invoke("report", report.parent)
    assert (result.exit_code, result.stdout) == (0, f"{report}\n")
    assert report.read_text(encoding="utf-8").lower().startswith("<!doctype html>")


def test_a_folder_without_a_run_is_an_error(invoke, tmp_path):
    for folder in (tmp_path / "absent", tmp_path):
        result = invoke("report", folder)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert folder.name in result.stderr
