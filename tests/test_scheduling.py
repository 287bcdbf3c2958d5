"""Tests run in one process where they share what is expensive, and each by itself elsewhere."""

import pytest

from scheduling import scope_of

ROUTES, SAMPLING = "tests/security/test_routes.py", "tests/test_sampling.py"


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/engines/test_ray_training.py::test_a", "ray"),
        ("tests/conformance/test_calls.py::test_a[ray]", "ray"),
        ("tests/conformance/test_calls.py::test_a[local]", "tests/conformance/"),
        (f"{ROUTES}::test_a[one]", ROUTES),
        (f"{SAMPLING}::test_a[array]", f"{SAMPLING}::test_a[array]"),
    ],
)
def test_tests_share_a_process_if_they_share_a_service_or_a_fixture(nodeid: str, scope: str) -> None:
    assert scope_of(nodeid) == scope
