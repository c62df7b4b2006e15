"""The images of the stack, built here from what the cache holds: no image registry is asked.

``python -m penstock_stack images`` lays out a build context per image and calls ``docker build``.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from penstock_stack.cache import cached
from penstock_stack.failure import StackError
from penstock_stack.jars import KAFKA_VERSION, kafka_jars
from penstock_stack.progress import Say, step
from penstock_stack.settings import JVM, LOGGING, image_properties, write_properties
from penstock_stack.store import MINIO_VERSION, minio_binary

BASE_IMAGE = "penstock/base:bookworm"
KAFKA_IMAGE = f"penstock/kafka:{KAFKA_VERSION}"
MINIO_IMAGE = f"penstock/minio:{MINIO_VERSION.rsplit('-', 1)[-1]}"
APP_IMAGE = "penstock/app:dev"

COMPOSE = Path(__file__).resolve().parent.parent
PROJECT = COMPOSE.parent
BASE_PACKAGES = "openjdk-17-jre-headless,python3-minimal,libpython3-stdlib,ca-certificates,tini"
BASE_PYTHON = "3.11"  # Debian 12's
BUILD_TIMEOUT_S = 1800.0

Layout = Callable[[Path, Say], None]


def build_images(say: Say) -> None:
    """Build whatever changed of the four images.

    Raises:
        StackError: a tool is missing or a build failed.
    """
    if shutil.which("docker") is None:
        raise StackError("images are built by Docker, and there is no `docker` on PATH")
    # MinIO compiles for minutes the first time: meanwhile the others are built.
    with ThreadPoolExecutor(1) as compiler:
        minio = compiler.submit(minio_binary, say)
        _build_base(say)
        _build("kafka", KAFKA_IMAGE, _lay_kafka, say)
        build_app_image(say)
        _build("minio", MINIO_IMAGE, lambda context, _: _lay_minio(context, minio.result()), say)


def build_app_image(say: Say) -> None:
    """Build the image of the project as it is now, on a base that is there."""
    _build("app", APP_IMAGE, _lay_app, say)


def image_exists(image: str) -> bool:
    """Whether the engine holds ``image``."""
    asked = ["docker", "image", "inspect", image]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def _build_base(say: Say) -> None:
    if image_exists(BASE_IMAGE):
        return
    if shutil.which("mmdebstrap") is None or os.geteuid() != 0:
        with step(say, f"building {BASE_IMAGE} on Debian's image (mmdebstrap as root needs none)"):
            _docker_build(BASE_IMAGE, COMPOSE / "base")
        return
    with tempfile.TemporaryDirectory(prefix="penstock-base-") as folder:
        tar = str(Path(folder) / "base.tar")
        with step(say, f"making {BASE_IMAGE} with mmdebstrap (about a minute, once)"):
            _run(
                "mmdebstrap",
                "--variant=minbase",
                f"--include={BASE_PACKAGES}",
                "--dpkgopt=path-exclude=/usr/share/{doc,man,locale}/*",
                "bookworm",
                tar,
            )
            _run("docker", "import", tar, BASE_IMAGE)


def _build(name: str, image: str, lay: Layout, say: Say) -> None:
    """Build ``image`` from the folder ``name`` beside this package and what ``lay`` adds to it."""
    with tempfile.TemporaryDirectory(prefix="penstock-image-") as folder:
        context = Path(folder)
        shutil.copytree(COMPOSE / name, context, dirs_exist_ok=True)
        lay(context, say)
        with step(say, f"building the image {image}"):
            _docker_build(image, context)
    say(f"image {image} is ready")


def _docker_build(image: str, context: Path) -> None:
    environment = dict(os.environ)
    buildx = subprocess.run(["docker", "buildx", "version"], capture_output=True, check=False)
    if buildx.returncode != 0:  # a client without the plugin still has the classic builder
        environment["DOCKER_BUILDKIT"] = "0"
    _run(
        *("docker", "build", "--quiet", "--tag", image, "--build-arg", f"BASE={BASE_IMAGE}"),
        str(context),
        env=environment,
    )


def _lay_kafka(context: Path, say: Say) -> None:
    (context / "jars").mkdir()
    jars = [shutil.copy2(jar, context / "jars") for jar in kafka_jars(say)]
    classpath = ":".join(f"/opt/kafka/jars/{Path(jar).name}" for jar in jars)
    write_properties(context / "server.properties", image_properties())
    (context / "java.options").write_text("\n".join((*JVM, *LOGGING, "-cp", classpath)) + "\n")


def _lay_minio(context: Path, binary: Path) -> None:
    shutil.copy2(binary, context / "minio")


def _lay_app(context: Path, say: Say) -> None:
    """The project and its runtime dependencies, at the versions and hashes of the lock."""
    requirements = "".join(runtime_requirements())
    version = hashlib.sha256(requirements.encode()).hexdigest()[:16]
    site = cached(f"app-site/{version}", lambda part: _gather(part, requirements, say))
    ignored = shutil.ignore_patterns("__pycache__", "requirements.txt")
    shutil.copytree(site, context / "site", ignore=ignored)
    for package in _project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        source = PROJECT / package
        shutil.copytree(source, context / "site" / source.name, ignore=ignored)
    shutil.copytree(PROJECT / "services", context / "services", ignore=ignored)


def _gather(site: Path, requirements: str, say: Say) -> None:
    """Install ``requirements`` for the Python of the base image, which need not be this one."""
    listed = site / "requirements.txt"
    listed.write_text(requirements)
    target = ("install", "--quiet", "--target", str(site), "--python-version", BASE_PYTHON)
    if shutil.which("uv") is not None:
        tool: tuple[str, ...] = ("uv", "pip", *target, "--python-platform", "linux")
    else:
        # --platform once for each tag that Debian 12's glibc can take
        tags = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64")
        platforms = [word for tag in tags for word in ("--platform", tag)]
        tool = (sys.executable, "-m", "pip", "--disable-pip-version-check", *target, *platforms)
    with step(say, "gathering the project's dependencies"):
        _run(*tool, "--only-binary=:all:", "--require-hashes", "--requirement", str(listed))


def runtime_requirements() -> Iterator[str]:
    """The entries of the lock, with their hashes, that the project needs when it runs."""
    wanted = _closure(_project()["project"]["dependencies"])
    lock = (PROJECT / "requirements.lock").read_text()
    for entry in re.split(r"\n(?=[a-zA-Z0-9])", lock):
        name = re.match(r"[A-Za-z0-9._-]+", entry)
        if name is not None and _plain(name[0]) in wanted:
            yield entry + "\n"


def _closure(requirements: list[str]) -> set[str]:
    """The names of ``requirements`` and of all that they need, as installed here."""
    names: set[str] = set()
    todo = list(requirements)
    while todo:
        requirement = todo.pop()
        match = re.match(r"[A-Za-z0-9._-]+", requirement)
        if match is None or "extra ==" in requirement or _plain(match[0]) in names:
            continue
        try:
            needs = metadata.requires(match[0]) or []
        except metadata.PackageNotFoundError:
            continue  # it is for another platform
        names.add(_plain(match[0]))
        todo.extend(needs)
    return names


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _project() -> dict[str, Any]:
    return tomllib.loads((PROJECT / "pyproject.toml").read_text())


def _run(*command: str, env: dict[str, str] | None = None) -> None:
    run = subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=BUILD_TIMEOUT_S
    )
    if run.returncode != 0:
        end = "\n".join((run.stdout + run.stderr).splitlines()[-25:])
        raise StackError(f"`{' '.join(command[:3])} …` failed with {run.returncode}:\n{end}")
