import json
import os
import shutil
import signal
import socket

import pytest

from nodes.launch.folders import get, is_alive, wait_for

STOPPED_S = 30.0


def exited(pids):
    wait_for(lambda: not any(map(is_alive, pids)), "the workers end")
    return True


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_workers_and_master_run_until_a_signal_stops_them(folder, how):
    master = folder.start()
    folder.wait_until_served(master)
    pids = folder.workers_pids()
    assert len(set(pids)) == 2
    master.send_signal(how)
    out, _ = master.communicate(timeout=STOPPED_S)
    assert master.returncode == 0, out
    assert "Traceback" not in out
    assert not any(map(is_alive, pids))
    for name, port in zip(folder.names, folder.ports, strict=True):
        assert f"{name}: ready at http://localhost:{port} after" in out
    assert (
        out.index("ready at") < out.index("the master serves at http://localhost:") < out.index("stopping the workers")
    )


def test_workers_end_when_their_master_is_killed(folder):
    master = folder.start()
    folder.wait_until_served(master)
    pids = folder.workers_pids()
    master.kill()
    assert exited(pids)


def test_a_hung_worker_ends_when_its_master_is_killed(folder):
    master = folder.start()
    folder.wait_until_served(master)
    pids = folder.workers_pids()
    os.kill(pids[0], signal.SIGSTOP)
    master.kill()
    assert exited(pids)


@pytest.mark.long
def test_child_processes_of_workers_end_with_them(folder):
    folder.write(
        "chimera_workers/tree2.py",
        "import subprocess, sys, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "pathlib.Path('child').write_text(str(child.pid))\n" + (folder.path / "chimera_workers/tree1.py").read_text(),
    )
    master = folder.start()
    folder.wait_until_served(master)
    child = int((folder.path / "child").read_text())
    assert is_alive(child)
    master.terminate()
    master.communicate(timeout=STOPPED_S)
    assert exited([child])


@pytest.mark.long
def test_an_interrupt_during_the_start_stops_the_workers(folder):
    for name in folder.names:
        folder.write(
            f"chimera_workers/{name}.py",
            "import os, pathlib, signal\n"
            "pathlib.Path(os.environ['CHIMERA_WORKER_NAME'] + '.pid').write_text(str(os.getpid()) + ' ')\n"
            "signal.pause()\n",
        )
    for how in (signal.SIGINT, signal.SIGTERM):
        files = [folder.path / f"{name}.pid" for name in folder.names]
        master = folder.start()
        wait_for(lambda files=files: all(f.is_file() and f.read_text().endswith(" ") for f in files), "workers start")
        pids = [int(file.read_text()) for file in files]
        master.send_signal(how)
        out, _ = master.communicate(timeout=STOPPED_S)
        assert (master.returncode, out) == (128 + how, "")
        assert exited(pids)
        for file in files:
            file.unlink()


def test_a_worker_that_exits_early_is_named_with_the_end_of_its_log(folder):
    folder.write("chimera_workers/tree2.py", "print('one')\nraise OSError('no data today')\n")
    master = folder.start()
    out, _ = master.communicate(timeout=STOPPED_S)
    assert master.returncode == 1
    assert "error: the worker tree2 exited with code 1 before it was ready" in out
    assert "OSError: no data today" in out
    assert 'File "' + str(folder.path / "master.py") not in out  # no traceback of the master


@pytest.mark.long
def test_a_worker_that_never_answers_is_named_after_the_timeout(folder):
    folder.write("chimera_workers/tree2.py", "import signal\nprint('thinking', flush=True)\nsignal.pause()\n")
    master = folder.start(CHIMERA_START_TIMEOUT="2")
    out, _ = master.communicate(timeout=STOPPED_S)
    assert master.returncode == 1
    assert "error: not ready within 2 s (CHIMERA_START_TIMEOUT): tree2 (" in out
    assert "thinking" in out


def test_all_missing_files_are_named_before_anything_starts(folder):
    (folder.path / "chimera_workers/tree1.py").unlink()
    shutil.rmtree(folder.path / "chimera_train_data/tree2")
    out, _ = folder.start().communicate(timeout=STOPPED_S)
    (line,) = out.splitlines()
    assert "the file chimera_workers/tree1.py, the folder chimera_train_data/tree2 are missing" in line
    assert not (folder.path / "chimera_logs").exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("node", ["master", "tree2"])
def test_a_port_in_use_is_named_before_anything_starts(folder, node):
    port = folder.port if node == "master" else folder.ports[1]
    with socket.create_server(("127.0.0.1", port)):
        out, _ = folder.start().communicate(timeout=STOPPED_S)
    (line,) = out.splitlines()
    assert node in line
    assert str(port) in line
    assert "another process listens there" in line
    assert not (folder.path / "chimera_logs").exists()


def test_a_host_beyond_loopback_without_a_token_is_refused_before_anything_starts(folder):
    out, _ = folder.start(CHIMERA_WORKERS_HOST="0.0.0.0").communicate(timeout=STOPPED_S)
    (line,) = out.splitlines()
    assert line.startswith(
        "error: listening on 0.0.0.0 would let every machine in the network use this server: set CHIMERA_TOKEN"
    )
    assert not (folder.path / "chimera_logs").exists()


def test_an_invalid_port_is_refused(folder):
    out, _ = folder.start(MASTER_PORT="0").communicate(timeout=STOPPED_S)
    assert out == "error: port: 0 cannot be used; allowed: a port from 1 to 65535\n"


def test_an_error_of_the_master_stops_the_workers(folder):
    folder.write(
        "master.py", (folder.path / "master.py").read_text().replace("app = FastAPI()", "raise RuntimeError('my own')")
    )
    master = folder.start()
    out, _ = master.communicate(timeout=STOPPED_S)
    assert master.returncode == 1
    assert "RuntimeError: my own" in out
    for port in folder.ports:
        with pytest.raises(OSError, match="refused"):
            get(f"http://localhost:{port}/")


@pytest.mark.long
def test_only_one_master_can_run_from_a_folder(folder):
    first = folder.start()
    folder.wait_until_served(first)
    again, _ = folder.start(MASTER_PORT=str(folder.port), CHIMERA_WORKERS_MAPPED_PORTS="[1, 2]").communicate(timeout=30)
    assert "error: " in again
    assert len(folder.workers_pids()) == 2
    first.terminate()
    first.communicate(timeout=STOPPED_S)


@pytest.mark.long
def test_workers_get_their_name_port_and_token(folder):
    master = folder.start(CHIMERA_TOKEN="sesame", CHIMERA_MAX_BODY_BYTES="4096")
    wait_for(lambda: (folder.path / "chimera_logs/tree2.log").is_file(), "a worker starts")

    def answered():
        try:
            return json.loads(get(f"http://localhost:{folder.ports[1]}/"))
        except OSError:
            return None

    answer = wait_for(answered, "the worker answers")
    assert answer["environment"]["CHIMERA_WORKER_NAME"] == "tree2"
    assert answer["environment"]["CHIMERA_WORKERS_PORT"] == str(folder.ports[1])
    assert answer["environment"]["CHIMERA_WORKERS_HOST"] == "127.0.0.1"
    assert answer["environment"]["CHIMERA_TOKEN"] == "sesame"
    assert answer["environment"]["CHIMERA_MAX_BODY_BYTES"] == "4096"
    assert answer["path"] == str(folder.path / "chimera_workers")
    assert answer["main"] == str(folder.path / "chimera_workers/tree2.py")
    master.terminate()
    master.communicate(timeout=STOPPED_S)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("X_train.csv", None, "there is no"),
        ("y_train.csv", None, "there is no"),
        ("X_train.csv", "", "is empty"),
        ("X_train.csv", "x\n1\n", "has 1 row but"),
        ("X_train.csv", "x\n1\nmany\n", "row 2, column 'x': 'many' is not a number"),
        ("X_train.csv", "x,z\n1,2\n1,\n", "row 2: the column 'z' has no value"),
        ("y_train.csv", "y\n1\ninf\n", "is not finite"),
    ],
)
def test_invalid_data_are_refused_in_one_line_before_anything_starts(folder, file, text, message):
    path = folder.path / "chimera_train_data" / "tree2" / file
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    out, _ = (master := folder.start()).communicate(timeout=STOPPED_S)
    assert master.returncode != 0
    (line,) = [line for line in out.splitlines() if line]
    assert line.startswith("error: the data of the worker tree2 are invalid: ")
    assert message in line
    assert file in line
    assert not (folder.path / "chimera_logs").exists()
