import math
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError
from chimera.nodes.settings import Settings, read_settings


@pytest.fixture(autouse=True)
def no_settings(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for field in Settings.model_fields:
        monkeypatch.delenv(f"CHIMERA_{field.upper()}", raising=False)


def refused(**given):
    with pytest.raises(ConfigurationError) as caught:
        read_settings(**given)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults():
    settings = read_settings()
    assert (settings.network_name, settings.network_prefix, settings.network_subnet_mask) == (
        "chimera-network",
        "192.168.10",
        24,
    )
    assert (settings.workers_cpu_shares, settings.workers_mapped_ports) == ((2,), (101,))
    assert (settings.workers_host, settings.workers_port) == ("127.0.0.1", 80)
    assert (settings.workers_endpoints_max_retries, settings.workers_endpoints_timeout) == (0, 100.0)
    assert (settings.launcher, settings.token, settings.base_image) == ("auto", None, "python:3.12-slim")
    assert settings.max_body_bytes == 256 * 2**20
    assert (settings.insecure, settings.published_on_loopback, settings.tls_client_ca) == (False, False, None)


@pytest.mark.parametrize(
    "text",
    ['["tree1", "tree2"]', "['tree1', 'tree2']", "('tree1', 'tree2')", ' ["tree1",\n "tree2"] '],
)
def test_lists_are_json_or_python_literals(monkeypatch, text):
    monkeypatch.setenv("CHIMERA_WORKERS_NODES_NAMES", text)
    monkeypatch.setenv("CHIMERA_WORKERS_CPU_SHARES", "(2, 3)")
    monkeypatch.setenv("CHIMERA_WORKERS_MAPPED_PORTS", "[5001, 5002]")
    settings = read_settings()
    assert settings.workers_nodes_names == ("tree1", "tree2")
    assert settings.workers_cpu_shares == (2, 3)
    assert settings.workers_urls == ("http://localhost:5001", "http://localhost:5002")


def test_precedence_is_keyword_environment_file_default(monkeypatch, tmp_path):
    (tmp_path / "chimera.toml").write_text("[nodes]\nworkers_port = 1\nnetwork_name = 'file'\nlauncher = 'docker'\n")
    monkeypatch.setenv("CHIMERA_WORKERS_PORT", "2")
    monkeypatch.setenv("CHIMERA_NETWORK_NAME", "environment")
    settings = read_settings(workers_port=3)
    assert (settings.workers_port, settings.network_name, settings.launcher) == (3, "environment", "docker")


def test_the_environment_is_read_each_time(monkeypatch):
    monkeypatch.setenv("CHIMERA_WORKERS_PORT", "1234")
    assert read_settings().workers_port == 1234
    monkeypatch.setenv("CHIMERA_WORKERS_PORT", "1235")
    assert read_settings().workers_port == 1235


BAD = [
    ("NETWORK_NAME", "-x"),
    ("NETWORK_NAME", ""),
    ("NETWORK_PREFIX", "192.168"),
    ("NETWORK_PREFIX", "192.168.10.1"),
    ("NETWORK_PREFIX", "192.168.256"),
    ("NETWORK_PREFIX", "127.0.0"),
    ("NETWORK_PREFIX", "224.0.0"),
    ("NETWORK_PREFIX", "a.b.c"),
    ("NETWORK_SUBNET_MASK", "33"),
    ("NETWORK_SUBNET_MASK", "x"),
    ("WORKERS_NODES_NAMES", "tree1"),
    ("WORKERS_NODES_NAMES", "[]"),
    ("WORKERS_NODES_NAMES", "{'a': 1}"),
    ("WORKERS_NODES_NAMES", "['a', 'A']"),
    ("WORKERS_NODES_NAMES", "['a b']"),
    ("WORKERS_NODES_NAMES", "['../a']"),
    ("WORKERS_NODES_NAMES", "['-a']"),
    ("WORKERS_NODES_NAMES", "[1]"),
    ("WORKERS_NODES_NAMES", f"['{'a' * 64}']"),
    ("WORKERS_NODES_NAMES", "__import__('os').listdir()"),
    ("WORKERS_CPU_SHARES", "[1]"),
    ("WORKERS_CPU_SHARES", "[2.5]"),
    ("WORKERS_CPU_SHARES", "[true]"),
    ("WORKERS_CPU_SHARES", "2"),
    ("WORKERS_CPU_SHARES", "[262145]"),
    ("WORKERS_CPU_SHARES", "["),
    ("WORKERS_MAPPED_PORTS", "[0]"),
    ("WORKERS_MAPPED_PORTS", "[65536]"),
    ("WORKERS_MAPPED_PORTS", "[5001, 5001]"),
    ("WORKERS_MAPPED_PORTS", "['5001']"),
    ("WORKERS_ADDRESSES", "['host:5000']"),
    ("WORKERS_ADDRESSES", "['http://a:1', 'http://a:1/']"),
    ("WORKERS_ADDRESSES", "['http://user:word@a:1']"),
    ("WORKERS_HOST", "a b"),
    ("WORKERS_HOST", "1.2.3.400"),
    ("WORKERS_PORT", "-1"),
    ("WORKERS_PORT", "http"),
    ("WORKERS_ENDPOINTS_MAX_RETRIES", "-1"),
    ("WORKERS_ENDPOINTS_MAX_RETRIES", "1.5"),
    ("WORKERS_ENDPOINTS_TIMEOUT", "0"),
    ("WORKERS_ENDPOINTS_TIMEOUT", "nan"),
    ("WORKERS_ENDPOINTS_TIMEOUT", "inf"),
    ("WORKERS_ENDPOINTS_TIMEOUT", "soon"),
    ("LAUNCHER", "podman"),
    ("TLS_CERT", "/no/such/file.pem"),
    ("TLS_CLIENT_CA", "/no/such/file.pem"),
    ("INSECURE", "perhaps"),
    ("PUBLISHED_ON_LOOPBACK", "127.0.0.1"),
    ("BASE_IMAGE", "a b"),
    ("BASE_IMAGE", "python\nRUN x"),
    ("IMAGE_PACKAGES", "['torch; rm -rf /']"),
    ("IMAGE_PACKAGES", "[\"'x'\"]"),
    ("MAX_BODY_BYTES", "0"),
    ("WORKER_NAME", "../x"),
    ("WORKER_NAME", ".."),
    ("START_TIMEOUT", "-1"),
]


@pytest.mark.parametrize(("variable", "value"), BAD)
def test_an_invalid_value_is_refused_with_variable_value_and_allowed_values(monkeypatch, variable, value):
    monkeypatch.setenv(f"CHIMERA_{variable}", value)
    message = refused()
    assert message.startswith(f"CHIMERA_{variable}: ")
    assert "allowed: " in message
    shown = re.search(r": (.*) cannot be used", message)[1]
    assert shown == repr(value) or shown.strip("'") in value.replace("true", "True")


def test_an_invalid_keyword_is_refused_with_its_variable():
    assert refused(workers_port=True).startswith("CHIMERA_WORKERS_PORT: True cannot be used")
    assert "workers_port" in refused(worker_port=1)


def test_lists_of_different_lengths_are_refused(monkeypatch):
    monkeypatch.setenv("CHIMERA_WORKERS_NODES_NAMES", '["a", "b"]')
    monkeypatch.setenv("CHIMERA_WORKERS_MAPPED_PORTS", "[5001, 5002]")
    message = refused()
    for part in ("NODES_NAMES has 2", "CPU_SHARES has 1", "MAPPED_PORTS has 2"):
        assert f"CHIMERA_WORKERS_{part}" in message


def test_addresses_of_workers_replace_their_ports(monkeypatch):
    monkeypatch.setenv("CHIMERA_WORKERS_NODES_NAMES", '["a", "b"]')
    monkeypatch.setenv("CHIMERA_WORKERS_ADDRESSES", '["http://10.0.0.1:5000/", "http://10.0.0.2:5000"]')
    assert read_settings().workers_urls == ("http://10.0.0.1:5000", "http://10.0.0.2:5000")
    monkeypatch.setenv("CHIMERA_WORKERS_ADDRESSES", '["http://10.0.0.1:5000"]')
    assert "CHIMERA_WORKERS_ADDRESSES has 1" in refused()


def test_a_token_is_not_sent_to_addresses_of_workers_in_clear(monkeypatch):
    monkeypatch.setenv("CHIMERA_TOKEN", "sesame")
    monkeypatch.setenv("CHIMERA_WORKERS_ADDRESSES", '["http://10.0.0.1:5000"]')
    assert refused().startswith("a token would travel to http://10.0.0.1:5000 in clear")
    monkeypatch.setenv("CHIMERA_WORKERS_ADDRESSES", '["https://10.0.0.1:5000"]')
    assert read_settings().workers_urls == ("https://10.0.0.1:5000",)


def test_a_network_must_have_no_host_bits_and_enough_addresses():
    assert "host bits" in refused(network_prefix="192.168.10", network_subnet_mask=16)
    assert read_settings(network_prefix="10.20.0", network_subnet_mask=16).network.num_addresses == 2**16
    many = {
        "workers_nodes_names": [f"w{i}" for i in range(6)],
        "workers_cpu_shares": [2] * 6,
        "workers_mapped_ports": list(range(5001, 5007)),
    }
    assert "5 workers" in refused(network_subnet_mask=29, **many)
    assert read_settings(network_subnet_mask=28, **many)


def test_the_token_is_never_shown(monkeypatch):
    monkeypatch.setenv("CHIMERA_TOKEN", "open sesame")
    assert "sesame" not in refused()
    monkeypatch.setenv("CHIMERA_TOKEN", "sesame")
    settings = read_settings()
    assert settings.token == "sesame"
    assert "sesame" not in repr(settings)
    assert "sesame" not in str(settings)


def test_an_empty_token_is_refused(monkeypatch):
    monkeypatch.setenv("CHIMERA_TOKEN", "")
    assert refused().startswith("CHIMERA_TOKEN: ")


def test_a_certificate_needs_a_key(tmp_path):
    (tmp_path / "c.pem").touch()
    assert "CHIMERA_TLS_KEY" in refused(tls_cert=tmp_path / "c.pem")
    assert "CHIMERA_TLS_CERT" in refused(tls_client_ca=tmp_path / "c.pem")
    both = read_settings(tls_cert=tmp_path / "c.pem", tls_key=tmp_path / "c.pem")
    assert both.workers_urls == ("https://localhost:101",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[nodes]\nworker_port = 1\n", "'worker_port'"),
        ("[nodes]\nworkers_port = 'x'\n", "CHIMERA_WORKERS_PORT: 'x'"),
        ("nodes = 1\n", "table"),
        ("[nodes\n", "not valid TOML"),
    ],
)
def test_an_invalid_file_is_refused(tmp_path, text, message):
    (tmp_path / "chimera.toml").write_text(text)
    assert message in refused()


@pytest.mark.parametrize("node", ["master", "worker"])
def test_a_program_with_an_invalid_setting_ends_with_one_line(monkeypatch, capsys, node):
    from chimera.nodes.masters import AggregationMaster
    from chimera.nodes.workers import SGDWorker

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setenv("CHIMERA_WORKERS_PORT", "-5")
    with pytest.raises(ConfigurationError) as caught:
        AggregationMaster() if node == "master" else SGDWorker("regressor")
    sys.excepthook(caught.type, caught.value, caught.tb)  # as Python does if the program does not catch it
    allowed = "a port from 0 to 65535 (0: any free port)"
    assert capsys.readouterr().err == f"error: CHIMERA_WORKERS_PORT: '-5' cannot be used; allowed: {allowed}\n"


def test_the_default_name_of_a_worker_is_that_of_its_file(tmp_path):
    program = tmp_path / "my_tree.py"
    program.write_text("from chimera.nodes.settings import read_settings\nprint(read_settings().worker_name)\n")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert done.stdout == "my_tree\n"
    assert read_settings(worker_name="tree1").worker_name == "tree1"


def test_settings_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        read_settings().workers_port = 1


@given(st.text())
def test_any_text_is_parsed_as_a_list_or_refused_in_one_line(text):
    message = ""
    try:
        names = read_settings(workers_nodes_names=text).workers_nodes_names
    except ConfigurationError as error:
        message, names = str(error), ()
    assert bool(message) != bool(names)
    assert "\n" not in message


@given(st.floats())
def test_a_timeout_must_be_finite_and_above_zero(seconds):
    try:
        taken = read_settings(workers_endpoints_timeout=seconds).workers_endpoints_timeout
    except ConfigurationError:
        assert not 0 < seconds <= 86_400
    else:
        assert math.isfinite(taken)
        assert taken > 0
