"""A savepoint in the making: its operators, and where the rows of each state come from. Pure.

Drafts are never changed: each change gives a new one, so that a writer can be kept and gone on
from twice. Names that are not there are refused at once, with the nearest.
"""

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar

import msgspec
from penstock.failure import ConfigurationError
from penstock.ids import InvalidName, checked_name
from penstock.savepoint.manifest import (
    KEYED_KINDS,
    FileEntry,
    OperatorEntry,
    Ownership,
    SavepointManifest,
    SourceEntry,
    StateEntry,
    WatermarkEntry,
)

Frame: TypeAlias = Callable[[], Any]
"""Makes a DataFrame when it is wanted."""


@dataclass(frozen=True)
class Kept:
    """The rows of a state of the savepoint that is modified, as they stand in its files."""

    operator: str
    state: str
    """Their names there."""
    files: tuple[FileEntry, ...]


@dataclass(frozen=True)
class Framed:
    """The rows of a DataFrame in the columns of the state."""

    frame: Frame
    key: str
    """The column that has the key."""
    has_keys: bool
    """Columns ``key`` and ``key_group``, where there are any, must fit the key."""


@dataclass(frozen=True)
class Filtered:
    """Rows of the format as a DataFrame, whose keys nobody has touched."""

    frame: Frame


Content: TypeAlias = Kept | Framed | Filtered | None
"""None: what the operator's bootstrap leaves."""


@dataclass(frozen=True)
class StateDraft:
    """A state of the savepoint to be."""

    entry: StateEntry
    content: Content
    is_renamed: bool = False

    @property
    def name(self) -> str:
        """Its name, and that of its columns' folder."""
        return self.entry.name


@dataclass(frozen=True)
class OperatorDraft:
    """An operator of the savepoint to be."""

    entry: OperatorEntry
    """Without states; ``ownership`` is that of keyed state, should there be any."""
    states: tuple[StateDraft, ...] = ()
    bootstrap: Any = None
    """Leaves the states without a content of their own."""
    is_renamed: bool = False

    @property
    def name(self) -> str:
        """Its uid."""
        return self.entry.uid

    def described(self) -> OperatorEntry:
        """The operator as the manifest says it."""
        keyed = any(state.entry.kind in KEYED_KINDS for state in self.states)
        owner: Ownership = self.entry.ownership if keyed else "none"
        states = tuple(state.entry for state in self.states)
        return msgspec.structs.replace(self.entry, ownership=owner, states=states)

    def state(self, name: str) -> StateDraft:
        """The state with this name; a name that was given anew counts after the old ones."""
        return _named(self.states, name, f"operator {self.name!r} has no state")

    def with_state(self, old: StateDraft | None, new: StateDraft | None) -> "OperatorDraft":
        """With ``new`` in the place of ``old``; at the end when there is no old one."""
        return replace(self, states=_replaced(self.states, old, new))


@dataclass(frozen=True)
class SavepointDraft:
    """Everything of the savepoint to be but its files."""

    app: str
    max_parallelism: int
    operators: tuple[OperatorDraft, ...] = ()
    sources: tuple[SourceEntry, ...] = ()
    watermarks: tuple[WatermarkEntry, ...] = ()
    checkpoint: int = 0
    parent: str | None = None
    kept_parallelism: int = field(default=0)
    """The key groups of what is kept; 0 when nothing is."""

    @classmethod
    def of(cls, manifest: SavepointManifest, url: str, app: str | None) -> "SavepointDraft":
        """The savepoint as it is."""
        operators = []
        for operator in manifest.operators:
            states = tuple(
                StateDraft(state, Kept(operator.uid, state.name, _files(manifest, operator, state)))
                for state in operator.states
            )
            owner: Ownership = "key_group" if operator.ownership == "none" else operator.ownership
            entry = msgspec.structs.replace(operator, states=(), ownership=owner)
            operators.append(OperatorDraft(entry, states))
        return cls(
            app=manifest.app if app is None else app,
            max_parallelism=manifest.max_parallelism,
            operators=tuple(operators),
            sources=manifest.sources,
            watermarks=manifest.watermarks,
            checkpoint=manifest.checkpoint,
            parent=url,
            kept_parallelism=manifest.max_parallelism,
        )

    def operator(self, uid: str) -> OperatorDraft:
        """The operator with this uid; a uid that was given anew counts after the old ones."""
        return _named(self.operators, uid, "there is no operator")

    def found(self, uid: str) -> OperatorDraft | None:
        """The same, or None."""
        return self.operator(uid) if uid in {o.name for o in self.operators} else None

    def with_operator(
        self, old: OperatorDraft | None, new: OperatorDraft | None
    ) -> "SavepointDraft":
        """With ``new`` in the place of ``old``; at the end when there is no old one."""
        return replace(self, operators=_replaced(self.operators, old, new))

    def check(self) -> None:
        """Raise ConfigurationError when a name stands for two things."""
        for what, names in [
            ("operators", [operator.name for operator in self.operators]),
            *(
                (f"states of operator {operator.name!r}", [state.name for state in operator.states])
                for operator in self.operators
            ),
        ]:
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise ConfigurationError(f"two {what} have the name {twice!r}; rename one of them")


def _files(
    manifest: SavepointManifest, operator: OperatorEntry, state: StateEntry
) -> tuple[FileEntry, ...]:
    mine = (operator.uid, state.name)
    return tuple(file for file in manifest.files if (file.operator, file.state) == mine)


class _Nameable(Protocol):
    """An operator or a state."""

    @property
    def name(self) -> str: ...
    @property
    def is_renamed(self) -> bool: ...


Draft = TypeVar("Draft", bound=_Nameable)


def _named(drafts: Iterable[Draft], name: str, what: str) -> Draft:
    known = tuple(drafts)
    found = sorted(
        (draft for draft in known if draft.name == name), key=lambda draft: draft.is_renamed
    )
    if not found:
        unknown(what, name, [draft.name for draft in known])
    return found[0]


def unknown(what: str, name: str, known: Sequence[str]) -> NoReturn:
    """Raise the error for a name that is not there, with the nearest one."""
    near = difflib.get_close_matches(name, known, 1, 0.0)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigurationError(f"{what} {name!r}{hint}")


def _replaced(drafts: tuple[Draft, ...], old: Draft | None, new: Draft | None) -> tuple[Draft, ...]:
    at = len(drafts)
    if old is not None:
        at = next(number for number, draft in enumerate(drafts) if draft is old)
    found = [*drafts[:at], *drafts[at + 1 :]]
    if new is not None:
        found.insert(at, new)
    return tuple(found)


def checked(what: str, name: str) -> str:
    """Return ``name`` when an operator, a service or a stage may have it; ConfigurationError."""
    try:
        return checked_name(what, name)
    except InvalidName as error:
        raise ConfigurationError(str(error)) from None
