"""Masters of workers that were started elsewhere: they are called, and neither started nor stopped."""

import signal

from nodes.launch.folders import get, is_alive, wait_for

STOPPED_S = 30.0


def start_workers(folder):
    """Start the workers by hand, as on other machines; return the setting of their addresses."""
    for name, port in zip(folder.names, folder.ports, strict=True):
        folder.start(f"chimera_workers/{name}.py", CHIMERA_WORKERS_PORT=str(port), CHIMERA_WORKER_NAME=name)
    for port in folder.ports:
        wait_for(lambda port=port: answers(port), "the worker answers")
    return repr([f"http://127.0.0.1:{port}" for port in folder.ports])


def answers(port):
    try:
        return get(f"http://127.0.0.1:{port}/health")
    except OSError:
        return False


def test_a_master_serves_workers_that_were_started_elsewhere_and_leaves_them(folder):
    addresses = start_workers(folder)
    pids = folder.workers_pids()
    for name in folder.names:  # files and data are where the workers are
        (folder.path / f"chimera_workers/{name}.py").unlink()
        for table in (folder.path / f"chimera_train_data/{name}").iterdir():
            table.unlink()
    master = folder.start(CHIMERA_WORKERS_ADDRESSES=addresses)
    folder.wait_until_served(master)
    shown = folder.chimera("nodes", "status", CHIMERA_WORKERS_ADDRESSES=addresses)
    assert shown.returncode == 0, shown.stdout
    logs = folder.chimera("nodes", "logs", "tree1")
    assert f"the worker at http://127.0.0.1:{folder.ports[0]} was started elsewhere" in logs.stdout
    master.send_signal(signal.SIGINT)
    out, _ = master.communicate(timeout=STOPPED_S)
    assert master.returncode == 0, out
    assert all(map(is_alive, pids))


def test_a_worker_that_is_not_there_is_named_with_its_reason(folder):
    addresses = repr([f"http://127.0.0.1:{port}" for port in folder.ports])
    master = folder.start(CHIMERA_WORKERS_ADDRESSES=addresses, CHIMERA_START_TIMEOUT="0.5")
    out, _ = master.communicate(timeout=STOPPED_S)
    assert master.returncode == 1
    assert "error: not ready within 0.5 s (CHIMERA_START_TIMEOUT): tree1 (" in out
    assert "Connection refused" in out
    assert "log" not in out
