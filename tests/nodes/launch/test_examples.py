"""The examples of nodes, run as in their descriptions: in processes, and in containers if a Docker daemon answers."""

import ast
import contextlib
import json
import os
import runpy
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import BaggingClassifier, BaggingRegressor
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.metrics import accuracy_score, log_loss, mean_squared_error, r2_score
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from nodes.launch.folders import free_ports, get, wait_for

EXAMPLES = Path(__file__).parents[3] / "examples"
UP_S, DOWN_S = 400.0, 60.0  # the workers' image may have to be built
SPLITS = 5  # random splits of the data
DRAWS = 20  # fits of scikit-learn's bagging on each split


class Example:
    """A copy of an example with its data and master."""

    def __init__(self, name, path, environment):
        self.path = shutil.copytree(EXAMPLES / name, path / name)
        self.environment = environment
        self.port = None
        self._master = None

    def make_data(self, seed=0):
        with contextlib.chdir(self.path):
            runpy.run_path("make_data.py")["main"](seed)

    def run(self, *command):
        command = [sys.executable, *map(str, command)]
        environment = {**self.environment, "MASTER": f"http://localhost:{self.port}"}
        done = subprocess.run(command, cwd=self.path, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, file="master.py"):
        workers = names_in(self.path / file)
        *ports, self.port = free_ports(len(workers) + 1)
        variables = {"CHIMERA_WORKERS_MAPPED_PORTS": repr(ports), "MASTER_PORT": str(self.port)}
        log = (self.path / "log").open("w")
        with log:
            self._master = subprocess.Popen(
                [sys.executable, file],
                cwd=self.path,
                env={**self.environment, **variables},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

        def answers():
            assert self._master.poll() is None, (self.path / "log").read_text()
            try:
                return get(f"http://localhost:{self.port}/health")
            except OSError:
                return False

        wait_for(answers, "the master serves", UP_S)
        return workers

    def post(self, route, body=None):
        data = b"" if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://localhost:{self.port}/v1/chimera/{route}", data, method="POST")
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def predict(self, master, inputs):
        return self.post(
            f"{master}/predict", {"X_pred_columns": list(inputs), "X_pred_rows": inputs.to_numpy().tolist()}
        )

    def read(self, *place):
        folder = self.path.joinpath(*place)
        (inputs,), (targets,) = folder.glob("X_*.csv"), folder.glob("y_*.csv")
        return pd.read_csv(inputs), pd.read_csv(targets)["target"]

    def pooled(self, workers):
        tables = [self.read("chimera_train_data", worker) for worker in workers]
        return tuple(pd.concat(parts, ignore_index=True) for parts in zip(*tables, strict=True))

    def stop(self):
        if self._master is not None and self._master.poll() is None:
            self._master.send_signal(signal.SIGINT)
            try:
                self._master.wait(DOWN_S)
            finally:
                if self._master.poll() is None:
                    os.killpg(self._master.pid, signal.SIGKILL)
                    self._master.wait()


def names_in(file):
    """Return the names of the workers in a master's file."""
    for node in ast.walk(ast.parse(file.read_text())):
        if (
            isinstance(node, ast.Call)
            and node.args
            and getattr(node.args[0], "value", "") == "CHIMERA_WORKERS_NODES_NAMES"
        ):
            return ast.literal_eval(node.args[1].value)
    raise AssertionError(file)


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.long)])
def environment(request):
    """Return the environment of nodes that run as processes or in containers."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("CHIMERA_")}
    variables["CHIMERA_LAUNCHER"] = request.param
    if request.param == "process":  # a proxy that cannot be reached: calls on this machine do not use it
        variables |= {"http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    if request.param == "docker":
        unique = os.urandom(2)
        variables["CHIMERA_BASE_IMAGE"] = request.getfixturevalue("docker_base")
        variables["CHIMERA_NETWORK_NAME"] = f"chimera-test-{unique.hex()}"
        variables["CHIMERA_NETWORK_PREFIX"] = f"10.{unique[0]}.{unique[1]}"
        variables["CHIMERA_START_TIMEOUT"] = "300"
    return variables


@pytest.fixture
def example(tmp_path, environment):
    """Return a function that copies an example."""
    made = []

    def make(name):
        made.append(Example(name, tmp_path, environment))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def bagging(example, file, task, reference, score, decide):
    """Return Chimera's scores on several splits, and the mean and standard deviation of scikit-learn's scores on them."""
    nodes = example("nodes_bagging")
    nodes.make_data()
    workers = nodes.start(file)
    output = nodes.run("client.py", task)
    ours, theirs = [], []
    for seed in range(SPLITS):
        nodes.make_data(seed)
        inputs, targets = nodes.pooled(workers)
        test, truth = nodes.read("test_data", task)
        assert nodes.post("aggregation/fit")["fit"] == "ok"
        ours.append(score(truth, decide(nodes.predict("aggregation", test)["y_pred_rows"])))
        if seed == 0:
            assert f"{ours[0]:.3f}" in output
        bags = [reference(random_state=draw).fit(inputs, targets) for draw in range(DRAWS)]
        theirs.append([score(truth, bag.predict(test)) for bag in bags])
    return np.array(ours), np.mean(theirs, axis=1), np.std(theirs, axis=1, ddof=1)


def assert_within_sampling_error(ours, mean, deviation):
    """Check that the mean difference of the scores is at most 3 standard errors; each score is one draw on its split."""
    error = np.sqrt(np.mean(deviation**2) / len(ours))
    difference = np.mean(ours - mean)
    assert abs(difference) <= 3 * error, f"difference {difference:+.4f}, standard error {error:.4f}"


@pytest.mark.long
def test_the_accuracy_of_bagged_classification_trees_equals_that_of_scikit_learn(example):
    def reference(random_state):
        tree = DecisionTreeClassifier(max_depth=5)
        return BaggingClassifier(tree, n_estimators=3, max_samples=1 / 3, random_state=random_state)

    outcome = bagging(
        example, "master.py", "classification", reference, accuracy_score, lambda answer: (np.array(answer) > 0.5) * 1
    )
    assert_within_sampling_error(*outcome)


@pytest.mark.long
def test_the_r2_of_bagged_regression_trees_equals_that_of_scikit_learn(example):
    def reference(random_state):
        tree = DecisionTreeRegressor(max_depth=4)
        return BaggingRegressor(tree, n_estimators=3, max_samples=1 / 3, random_state=random_state)

    outcome = bagging(example, "master_regression.py", "regression", reference, r2_score, np.array)
    assert_within_sampling_error(*outcome)


@pytest.mark.long
def test_distributed_linear_regression_is_within_1_percent_of_a_single_machine(example):
    nodes = example("nodes_linear_regression")
    nodes.make_data()
    inputs, targets = nodes.pooled(nodes.start())
    test, truth = nodes.read("test_data")
    output = nodes.run("client.py")
    single = SGDRegressor(penalty=None, max_iter=2000, tol=None, random_state=0).fit(inputs, targets)
    ours = np.array(nodes.predict("parameter-server", test)["y_pred_rows"])
    assert output == f"r2 {r2_score(truth, ours):.3f}\n"
    assert r2_score(truth, ours) == pytest.approx(r2_score(truth, single.predict(test)), rel=0.01)
    fitted = np.array(nodes.predict("parameter-server", inputs)["y_pred_rows"])
    expected = mean_squared_error(targets, single.predict(inputs))
    assert mean_squared_error(targets, fitted) == pytest.approx(expected, rel=0.01)


@pytest.mark.long
def test_distributed_logistic_regression_is_within_1_percent_of_a_single_machine(example):
    nodes = example("nodes_logistic_regression")
    nodes.make_data()
    inputs, targets = nodes.pooled(nodes.start())
    test, truth = nodes.read("test_data")
    output = nodes.run("client.py")
    single = SGDClassifier(loss="log_loss", alpha=0.01, max_iter=2000, tol=None, random_state=0)
    single.fit(inputs, targets)
    answer = nodes.predict("parameter-server", test)
    assert answer["classes"] == [0, 1]
    accuracy = accuracy_score(truth, answer["y_pred_rows"])
    assert output == f"accuracy {accuracy:.3f}\n"
    assert accuracy == pytest.approx(accuracy_score(truth, single.predict(test)), rel=0.01)
    fitted = np.array(nodes.predict("parameter-server", inputs)["y_proba_rows"])
    assert log_loss(targets, fitted) == pytest.approx(log_loss(targets, single.predict_proba(inputs)), rel=0.01)


@pytest.mark.long
def test_the_project_that_init_writes_runs(tmp_path, environment):
    done = subprocess.run(
        [sys.executable, "-m", "chimera", "nodes", "init", "new"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "python master.py" in done.stdout
    master = tmp_path / "new/master.py"
    *ports, port = free_ports(3)
    text = master.read_text()
    for fixed, free in ((5001, ports[0]), (5002, ports[1]), (8080, port)):  # the only change: free ports
        assert text.count(str(fixed)) == 1
        text = text.replace(str(fixed), str(free))
    master.write_text(text)
    up = [sys.executable, "-m", "chimera", "nodes"]
    options = {"cwd": master.parent, "env": {**environment, "MASTER": f"http://localhost:{port}"}}
    try:
        done = subprocess.run(
            [*up, "up", "master.py", "--detach"], **options, capture_output=True, text=True, timeout=UP_S
        )
        assert done.returncode == 0, done.stderr
        out = subprocess.run([sys.executable, "client.py"], **options, capture_output=True, text=True, timeout=60)
        fit, accuracy = out.stdout.splitlines()
        assert fit == "{'fit': 'ok', 'workers': {'tree1': {'fit': 'ok'}, 'tree2': {'fit': 'ok'}}}"
        assert float(accuracy.split()[1]) > 0.85  # two trees; the larger class alone has 0.63
    finally:
        subprocess.run([*up, "down"], **options, timeout=DOWN_S, check=True)


@pytest.fixture
def certificate(tmp_path):
    """Return the environment variables of a self-signed certificate and its key."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    signed = builder.sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "cert.pem").write_bytes(signed.public_bytes(pem))
    (tmp_path / "key.pem").write_bytes(private)
    return {"CHIMERA_TLS_CERT": str(tmp_path / "cert.pem"), "CHIMERA_TLS_KEY": str(tmp_path / "key.pem")}


@pytest.mark.long
@pytest.mark.parametrize("asks_clients", [False, True])
def test_a_table_runs_with_a_token_and_tls(example, environment, certificate, asks_clients):
    if asks_clients:
        certificate |= {"CHIMERA_TLS_CLIENT_CA": certificate["CHIMERA_TLS_CERT"]}
    nodes = example("nodes_linear_regression")
    nodes.make_data()
    *ports, port = free_ports(3)
    (nodes.path / "chimera.toml").write_text(
        f"[nodes]\nmaster = 'parameter-server'\nport = {port}\n"
        "options = { model_type = 'regressor', penalty = 'l2', eta0 = 0.1, max_iter = 20 }\n"
        f"workers_nodes_names = ['sgd1', 'sgd2']\nworkers_cpu_shares = [2, 2]\nworkers_mapped_ports = {ports}\n"
        "workers_host = '127.0.0.1'\n"
    )
    options = {"cwd": nodes.path, "env": {**environment, **certificate, "CHIMERA_TOKEN": "sesame"}}
    command = [sys.executable, "-m", "chimera", "nodes"]
    up = subprocess.run([*command, "up", "--detach"], **options, capture_output=True, text=True, timeout=UP_S)
    try:
        assert up.returncode == 0, up.stderr
        assert f"https://localhost:{port}" in up.stdout
        status = subprocess.run([*command, "status"], **options, capture_output=True, text=True, timeout=60)
        assert status.returncode == 0, status.stdout
        assert status.stdout.count("https://") == 3
        trusted = ssl.create_default_context(cafile=certificate["CHIMERA_TLS_CERT"])
        if asks_clients:
            trusted.load_cert_chain(certificate["CHIMERA_TLS_CERT"], certificate["CHIMERA_TLS_KEY"])
        fit = urllib.request.Request(f"https://localhost:{port}/v1/chimera/parameter-server/fit", b"", method="POST")
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(fit, context=trusted, timeout=60)
        refused.value.close()
        fit.add_header("Authorization", "Bearer sesame")
        with urllib.request.urlopen(fit, context=trusted, timeout=60) as answer:
            assert json.load(answer)["fit"] == "ok"
        logs = subprocess.run([*command, "logs"], **options, capture_output=True, text=True, timeout=60)
        assert "sesame" not in logs.stdout
    finally:
        subprocess.run([*command, "down"], **options, timeout=DOWN_S, check=True)
