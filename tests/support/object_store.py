"""An S3 server of the test's own: moto's, in a process of its own, and the environment by which clients find it.

It takes one request after the other: moto looks for a file and then makes it, which must not be torn apart.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from running import await_condition
from stream_servers import free_port

BUCKET = "lake"
SERVER = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
run_simple("127.0.0.1", int(sys.argv[1]), DomainDispatcherApplication(create_backend_app), threaded=False)
"""


@contextmanager
def object_store() -> Iterator[dict[str, str]]:
    """Give the variables that boto3, pyarrow and delta-rs need to reach the store, which has one empty bucket."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            await_condition(lambda: _made_bucket(address), "the object store to answer", 180)
            yield {
                "AWS_ENDPOINT_URL": address,
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_REGION": "us-east-1",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_EC2_METADATA_DISABLED": "true",
                "AWS_ALLOW_HTTP": "true",
            }
        finally:
            server.terminate()


def _made_bucket(address: str) -> bool:
    with suppress(OSError):
        urllib.request.urlopen(urllib.request.Request(f"{address}/{BUCKET}", method="PUT"), timeout=10).close()
        return True
    return False
