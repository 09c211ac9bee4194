"""podman-py's REST client with one fault mended: a refused connection's socket is closed at once.

Imported when the first call is made, never at start-up: it loads requests and urllib3.
"""

from __future__ import annotations

from pathlib import Path

from podman.api.client import APIClient, APIResponse
from podman.api.uds import UDSAdapter, UDSConnection, UDSConnectionPool, UDSSocket
from podman.errors import APIError
from requests import RequestException
from urllib3.exceptions import HTTPError

API_VERSION = "4.0.0"  # the oldest REST API that has all that is used here
FAILURES = (APIError, RequestException, HTTPError, OSError)


class ClosingConnection(UDSConnection):
    """A connection that keeps no socket when it fails; podman-py's leaves it to the garbage collector."""

    def connect(self) -> None:
        """Connect to the Unix socket."""
        fresh = UDSSocket(self.uds)
        fresh.settimeout(self.timeout)
        try:
            fresh.connect()  # type: ignore[no-untyped-call]
        except APIError:
            fresh.close()
            raise
        self.sock = fresh


class ClosingPool(UDSConnectionPool):
    """A pool of such connections."""

    ConnectionCls = ClosingConnection


def new_client(socket: Path) -> APIClient:
    """A client for the service on `socket`; for one thread only."""
    client = APIClient(base_url=f"http+unix://{socket}", version=API_VERSION)
    adapter = client.get_adapter("http://")
    assert isinstance(adapter, UDSAdapter) and adapter.poolmanager is not None
    adapter.poolmanager.pool_classes_by_scheme = {"http": ClosingPool}
    return client


def send(client: APIClient, method: str, path: str, params: dict[str, str], data: str | None,
         timeout_s: float | None) -> APIResponse:  # fmt: skip
    """One REST call; raises one of `FAILURES` when there is no answer."""
    headers = {"Content-Type": "application/json"}
    if method == "POST":
        return client.post(path, params=params, headers=headers, timeout=timeout_s, data=data)
    call = {"GET": client.get, "DELETE": client.delete}[method]
    return call(path, params=params, headers=headers, timeout=timeout_s)
