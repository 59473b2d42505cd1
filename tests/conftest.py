"""What all tests share: an S3 on loopback, and an environment that each leaves as it was."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.own_home import product_variables

VARIABLES_AT_START = product_variables()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """What is shared by a session may live on; a variable of it would send the next test to another's home."""
    yield
    assert product_variables() == VARIABLES_AT_START, f"{item.nodeid} leaves variables of its own to the next test"


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A moto server for the session, and the usual AWS variables, which processes started by the tests inherit."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("DEFAULT_REGION", "us-east-1")):
            patched.setenv(f"AWS_{name}", value)
        yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_endpoint: str) -> str:
    """The URL of a bucket of the test's own."""
    import boto3

    bucket = f"test-{uuid.uuid4().hex[:12]}"
    boto3.client("s3", endpoint_url=s3_endpoint).create_bucket(Bucket=bucket)
    return f"s3://{bucket}"
