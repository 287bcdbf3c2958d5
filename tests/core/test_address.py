"""Tests of server addresses, and of the addresses to which a token may be sent."""

from __future__ import annotations

import pytest

from chimera.core.address import Address, host_in_url
from chimera.core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://127.0.0.1:80/", ("127.0.0.1", 80, False, "")),
        ("https://hub.example", ("hub.example", 443, True, "")),
        ("https://hub.example:8443/jobs/", ("hub.example", 8443, True, "/jobs")),
        ("http://[::1]:5", ("::1", 5, False, "")),
    ],
)
def test_parts_of_an_address(url: str, found: tuple[str, int, bool, str]) -> None:
    address = Address.of(url)
    assert (address.host, address.port, address.secure, address.path) == found


@pytest.mark.parametrize(
    "url",
    ["ftp://a:1", "file:///etc/passwd", "//a:1", "a:1", "", "http://", "http://a:99999", "http://a:x", "http://a:0", "http://[",
     "http://user:hunter2@a:1", "user:hunter2@a:1", "http://user:hunter2/x@a:1", "http://user:hunter2?x@a:1",
     "http://a:1/?q=1", "http://a:1/#f", "http://a b:1", "http://a:1/\r\nHost: b", "http://\u0430:1"],
)  # fmt: skip
def test_an_invalid_address_raises_a_one_line_error(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Address.of(url)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in f"{caught.value} {caught.value.__context__}"


@pytest.mark.parametrize("host", ["127.0.0.1", "hub.example", "::1", "2001:db8::7"])
def test_an_address_made_of_a_host_has_this_host(host: str) -> None:
    assert Address.of(f"https://{host_in_url(host)}:8443").host == host


@pytest.mark.parametrize("url", ["http://192.0.2.1:80", "http://node.example", "http://localhost.example"])
def test_a_token_is_sent_unencrypted_only_if_explicitly_allowed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHIMERA_INSECURE", raising=False)
    with pytest.raises(
        ConfigurationError, match=r"would travel to .* in clear: use an https:// address, or set CHIMERA_INSECURE=1"
    ):
        Address.of(url).check_token_is_protected()
    monkeypatch.setenv("CHIMERA_INSECURE", "1")
    Address.of(url).check_token_is_protected()


@pytest.mark.parametrize(
    "url", ["http://127.9.9.9:1", "http://localhost:1", "http://[::1]:1", "http://0.0.0.0:1", "https://node.example"]
)
def test_a_token_is_sent_to_this_machine_and_over_tls(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHIMERA_INSECURE", raising=False)
    Address.of(url).check_token_is_protected()
