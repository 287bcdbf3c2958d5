import pytest

from chimera.core.errors import ConfigurationError
from chimera.nodes.project import write_project
from nodes.launch.folders import is_alive, wait_for


@pytest.mark.long
def test_up_status_logs_and_down_of_a_detached_master(folder):
    up = folder.chimera("nodes", "up", "master.py", "--detach")
    try:
        assert up.returncode == 0, up.stdout
        assert f"the master serves at http://localhost:{folder.port} (process " in up.stdout
        assert all(f"{name}: ready at" in up.stdout for name in ("tree1", "tree2"))
        assert "Ctrl-C" not in up.stdout  # in the line for a master of the foreground
        pids = folder.workers_pids()
        status = folder.chimera("nodes", "status")
        assert status.returncode == 0, status.stdout
        assert [line.split()[0] for line in status.stdout.splitlines()] == ["node", "master", "tree1", "tree2"]
        assert status.stdout.count(" ok") == 3
        again = folder.chimera("nodes", "up", "master.py", "--detach")
        assert again.returncode == 2
        assert "already" in again.stdout
        logs = folder.chimera("nodes", "logs")
        assert "plain worker tree1" in logs.stdout
        assert "tree2: ready at" in logs.stdout
        assert folder.chimera("nodes", "logs", "tree2", "--lines", "1").stdout.count("\n") == 1
    finally:
        down = folder.chimera("nodes", "down")
    assert down.stdout == "stopped the master and 2 workers\n"
    wait_for(lambda: not any(map(is_alive, pids)), "the workers end")
    gone = folder.chimera("nodes", "status")
    assert gone.returncode == 1
    assert "no nodes run from" in gone.stdout
    assert "plain worker tree1" in folder.chimera("nodes", "logs", "tree1").stdout
    assert folder.chimera("nodes", "down").returncode == 0


@pytest.mark.long
def test_a_detached_master_that_fails_to_start_prints_the_reason(folder):
    folder.write("chimera_workers/tree2.py", "raise OSError('no data today')\n")
    up = folder.chimera("nodes", "up", "master.py", "--detach")
    assert up.returncode == 1
    assert "the worker tree2 exited with code 1" in up.stdout
    assert "OSError: no data today" in up.stdout


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (None, "write chimera.toml with a table [nodes]"),
        ("[nodes]\nmaster = 'x'\n", "master = 'x' cannot be used; allowed: 'aggregation', 'parameter-server'"),
        ("[nodes]\nmaster = 'aggregation'\noptions = 1\n", "allowed: a table, [nodes.options]"),
        ("[nodes]\nmasters = 1\n", "has no setting 'masters'"),
    ],
)
def test_an_invalid_table_is_one_line_and_exit_code_2(folder, toml, message):
    if toml is not None:
        folder.write("chimera.toml", toml)
    up = folder.chimera("nodes", "up")
    assert up.returncode == 2
    (line,) = up.stdout.splitlines()
    assert message in line


def test_a_missing_file_and_missing_logs_are_refused(folder):
    for arguments in (("up", "none.py"), ("logs",), ("logs", "unknown")):
        done = folder.chimera("nodes", *arguments)
        assert done.returncode == 2
        assert len(done.stdout.splitlines()) == 1


def test_init_writes_a_new_folder_and_overwrites_nothing(tmp_path):
    files = write_project(tmp_path / "new")
    assert all(file.is_file() for file in files)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/client.py").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"client\.py would be overwritten"):
        write_project(tmp_path / "other")
    assert [file.name for file in (tmp_path / "other").iterdir()] == ["client.py"]


def test_the_test_rows_of_init_are_in_no_workers_data(tmp_path):
    write_project(tmp_path)
    tables = {file: set(file.read_text().splitlines()[1:]) for file in tmp_path.rglob("X_*.csv")}
    assert len(tables) == 3
    sizes = [len(rows) for rows in tables.values()]
    assert len(set().union(*tables.values())) == sum(sizes) == 569
