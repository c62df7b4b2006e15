"""Jars of the Java world, fetched once from Maven's public repository into the cache.

The fetcher is Ivy, which lies among PySpark's jars, so that nobody needs Maven; Maven is used
where PySpark is not installed.
"""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from penstock_stack.cache import cache_folder, cached
from penstock_stack.failure import StackError
from penstock_stack.java import find_java
from penstock_stack.progress import Say, step

KAFKA_VERSION = "4.1.1"
HADOOP_VERSION = "3.5.0"  # PySpark 4.3's
AWS_VERSION = "2.35.4"  # the one that this Hadoop was built with
FETCH_TIMEOUT_S = 600.0


class JarSet(NamedTuple):
    """Some artifacts with everything they need, as one folder of the cache."""

    name: str
    title: str
    """For people: what is fetched, and how much of it."""
    folder: str
    artifacts: tuple[tuple[str, str, str], ...]
    """Group, artifact and version of each."""
    excluded: tuple[tuple[str, str], ...]
    """Group and artifact that are left out, ``*`` for any."""
    proof: str
    """The jar that must be there in the end."""


KAFKA = JarSet(
    name="broker",
    title=f"Kafka {KAFKA_VERSION} (about 40 MB, once)",
    folder=f"kafka/{KAFKA_VERSION}",
    artifacts=(
        ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
        # Kafka brings the slf4j API and no way to see its logs
        ("org.slf4j", "slf4j-simple", "1.7.36"),
    ),
    excluded=(),
    proof=f"kafka_2.13-{KAFKA_VERSION}.jar",
)

S3A = JarSet(
    name="s3a",
    title=f"Hadoop's S3 client {HADOOP_VERSION} for Spark (about 14 MB, once)",
    folder=f"s3a/{HADOOP_VERSION}-{AWS_VERSION}",
    artifacts=(
        ("org.apache.hadoop", "hadoop-aws", HADOOP_VERSION),
        *(
            ("software.amazon.awssdk", part, AWS_VERSION)
            for part in ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
        ),
    ),
    excluded=(
        ("software.amazon.awssdk", "bundle"),  # 686 MB of all AWS services; the parts are above
        ("org.wildfly.openssl", "wildfly-openssl"),  # Java's own TLS will do
        # Spark brings these, in its own versions
        ("io.netty", "*"),
        ("org.slf4j", "*"),
        ("commons-codec", "*"),
        ("commons-logging", "*"),
    ),
    proof=f"hadoop-aws-{HADOOP_VERSION}.jar",
)


def kafka_jars(say: Say) -> list[Path]:
    """The jars of the broker, in the order of their names.

    Raises:
        StackError: they could not be fetched.
    """
    return fetched(KAFKA, say)


def s3a_jars(say: Say) -> list[Path]:
    """The jars with which Spark reads ``s3a://`` URLs, in the order of their names.

    Raises:
        StackError: they could not be fetched.
    """
    return fetched(S3A, say)


def fetched(jars: JarSet, say: Say) -> list[Path]:
    """The files of ``jars``, fetched when they are not in the cache, in the order of their names.

    Raises:
        StackError: they could not be fetched.
    """
    folder = cached(jars.folder, lambda part: _fetch(jars, part, say))
    return sorted(folder.glob("*.jar"))


def _fetch(jars: JarSet, part: Path, say: Say) -> None:
    with step(say, f"fetching {jars.title}"):
        ivy = _ivy_jars()
        if ivy is not None:
            _run(_ivy_command(jars, ivy, part), jars)
        elif (maven := shutil.which("mvn")) is not None:
            _run(_maven_command(jars, maven, part), jars)
        else:
            raise StackError(
                f"The jars of {jars.name} can be fetched by Ivy or by Maven; neither was found. "
                "Install PySpark, which carries Ivy (pip install pyspark; `make setup` does it), "
                "or Maven (Debian: apt-get install maven)."
            )
    if not (part / jars.proof).is_file():
        raise StackError(f"{jars.proof} is not among the fetched jars in {part}")


def _ivy_jars() -> Path | None:
    """PySpark's folder of jars, if it is installed and holds Ivy; PySpark is not imported."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        return None
    jars = Path(found.origin).parent / "jars"
    return jars if list(jars.glob("ivy-*.jar")) else None


def _ivy_command(jars: JarSet, ivy: Path, part: Path) -> list[str]:
    module = part / "ivy.xml"
    needs = "".join(
        f'<dependency org="{org}" name="{name}" rev="{version}" conf="default"/>'
        for org, name, version in jars.artifacts
    )
    without = "".join(f'<exclude org="{org}" module="{name}"/>' for org, name in jars.excluded)
    module.write_text(
        f'<ivy-module version="2.0"><info organisation="penstock" module="{jars.name}"/>'
        f"<dependencies>{needs}{without}</dependencies></ivy-module>"
    )
    return [
        *(find_java(), "-cp", f"{ivy}/*", "org.apache.ivy.Main"),
        *("-cache", str(cache_folder() / "ivy"), "-ivy", str(module), "-types", "jar", "bundle"),
        *("-retrieve", f"{part}/[artifact]-[revision].[ext]"),
    ]


def _maven_command(jars: JarSet, maven: str, part: Path) -> list[str]:
    project = part / "pom.xml"
    without = "".join(
        f"<exclusion><groupId>{org}</groupId><artifactId>{name}</artifactId></exclusion>"
        for org, name in jars.excluded
    )
    needs = "".join(
        f"<dependency><groupId>{org}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version><exclusions>{without}</exclusions></dependency>"
        for org, name, version in jars.artifacts
    )
    project.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>penstock</groupId>"
        f"<artifactId>{jars.name}</artifactId><version>1</version><dependencies>{needs}"
        "</dependencies></project>"
    )
    return [
        *(maven, "-q", "-B", "-f", str(project), "dependency:copy-dependencies"),
        f"-DoutputDirectory={part}",
    ]


def _run(command: list[str], jars: JarSet) -> None:
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=FETCH_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as late:
        raise StackError(
            f"fetching {jars.title} took more than {FETCH_TIMEOUT_S:.0f} s; is the network slow? "
            "Run it again: what was downloaded is kept."
        ) from late
    if run.returncode != 0:
        end = "\n".join((run.stdout + run.stderr).splitlines()[-25:])
        raise StackError(
            f"fetching {jars.title} failed with exit code {run.returncode}; this needs the network "
            f"once. The end of its output:\n{end}"
        )
