"""A second Podman service beside Corral's own, with a storage of its own, which only borrows the first one's images."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.config.runconfig import home, podman_home
from appliance.sandbox.images.build import build_images
from appliance.sandbox.settings import PodmanPlaces, podman_environment


@contextmanager
def second_podman(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The service and its socket."""
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    build_images(podman_home(home()), [], print)
    environment = podman_environment(folder / "second")
    conf = Path(environment["CONTAINERS_STORAGE_CONF"])
    images = PodmanPlaces.under(podman_home(home())).storage
    conf.write_text(conf.read_text() + f'[storage.options]\nadditionalimagestores = ["{images}"]\n')
    socket = folder / "second.sock"
    service = subprocess.Popen(
        ["podman", "system", "service", "--time=0", f"unix://{socket}"], env=environment, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 60
        while not socket.exists():
            assert service.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        yield service, socket
    finally:
        service.kill()
        service.wait()
        command = ["podman", "rm", "--all", "--force", "--time=0"]
        subprocess.run(command, env=environment, capture_output=True, check=False)
        storage = PodmanPlaces.under(folder / "second").storage
        subprocess.run(["umount", "-l", str(storage / "overlay")], capture_output=True, check=False)
