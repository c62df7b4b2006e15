"""A secret: where to find a password, never the password itself."""

import os
from pathlib import Path
from typing import NamedTuple

from penstock.failure import ConfigurationError

HIDDEN = "***"


class Secret:
    """A reference to a secret in an environment variable or a file (docs/howto/security.md).

    It is read when a client is made, so a pickle, a log line, an error or a repr of whatever holds
    it has nothing to show.
    """

    __slots__ = ("_name", "_source")

    def __init__(self, source: str, name: str) -> None:
        if source not in ("env", "file"):
            raise ConfigurationError("a Secret comes from an environment variable or a file")
        self._source = source
        self._name = name

    @classmethod
    def env(cls, variable: str) -> "Secret":
        """The secret in environment variable ``variable``."""
        return cls("env", variable)

    @classmethod
    def file(cls, path: str) -> "Secret":
        """The secret in the file ``path``; one line end after it is not part of it."""
        return cls("file", path)

    def reveal(self, setting: str) -> "Revealed":
        """Read the secret for ``setting``; ConfigurationError names the place, not the value."""
        if self._source == "env":
            found = os.environ.get(self._name)
            if found is None:
                raise ConfigurationError(
                    f"{setting}: environment variable {self._name} is not set; set it, or name a "
                    "file that holds the secret"
                )
            return Revealed(found)
        try:
            return Revealed(Path(self._name).read_text(encoding="utf-8").removesuffix("\n"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"{setting}: cannot read the secret from file {self._name}: "
                f"{type(error).__name__}; make it a readable UTF-8 text file"
            ) from None

    def __repr__(self) -> str:
        return HIDDEN

    def __reduce__(self) -> tuple[type["Secret"], tuple[str, str]]:
        return (Secret, (self._source, self._name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> "_Place":
        return _Place(self._source, self._name)


class _Place(NamedTuple):
    source: str
    name: str


class Revealed(str):
    """A secret's value on its way into a client; a dump of the client's settings shows ``***``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return HIDDEN
