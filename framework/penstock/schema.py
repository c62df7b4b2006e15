"""What a type looks like on the wire, as plain data: a savepoint explains itself without the class.

`schema_of` describes a type that msgspec knows, `wire_type` makes from the description a type that
decodes and encodes the same msgpack, and `difference` says whether a declared type still reads what
was saved. Names of fields are those on the wire.
"""

import re
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeAlias, Union
from uuid import UUID

import msgspec
from msgspec import inspect

from penstock.serde import type_name

MOST_DEPTH = 32
"""Nesting of a schema; what is deeper is ``any``."""

Kind: TypeAlias = Literal[
    "bool",
    "int",
    "float",
    "str",
    "bytes",
    "none",
    "any",
    "date",
    "datetime",
    "time",
    "timedelta",
    "decimal",
    "uuid",
    "enum",
    "list",
    "set",
    "tuple",
    "map",
    "struct",
    "union",
]


class Schema(msgspec.Struct, frozen=True, omit_defaults=True):
    """A type as it is on the wire."""

    kind: Kind
    nullable: bool = False
    """None is a value, too. Never set for ``any``, which has it anyway."""
    name: str = ""
    """The class of a struct or an enum, for people."""
    items: "tuple[Schema, ...]" = ()
    """Element of a list or set; key and value of a map; parts of a tuple; members of a union."""
    fields: "tuple[Field, ...]" = ()
    """Of a struct."""
    values: tuple[int | str, ...] = ()
    """Of an enum: all integers or all strings."""
    array_like: bool = False
    """A struct that is an array on the wire: its fields are told apart by their place."""
    tag_field: str | None = None
    tag: int | str | None = None


class Field(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field of a struct."""

    name: str
    """On the wire."""
    type: Schema
    required: bool = True
    default: str | None = None
    """JSON of what a missing field means; None: only the class knows."""

    @property
    def may_be_absent(self) -> bool:
        """Missing on the wire, it stays missing: no default is known that could stand for it."""
        return not self.required and self.default is None


ANY = Schema("any")
_UNNAMEABLE = re.compile(r'[\x00-\x1f"\\]')
"""What no field of a Struct has in its name; a TypedDict may."""


def schema_of(kind: Any) -> Schema:
    """The description of a type; ``any`` where msgspec does not know it, or where it recurs."""
    try:
        info = inspect.type_info(kind)
    except TypeError:
        return ANY
    return _Reading((), 0).schema(info)


_PLAIN: dict[type[inspect.Type], Kind] = {
    inspect.BoolType: "bool",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BytesType: "bytes",
    inspect.ByteArrayType: "bytes",
    inspect.MemoryViewType: "bytes",
    inspect.NoneType: "none",
    inspect.DateType: "date",
    inspect.DateTimeType: "datetime",
    inspect.TimeType: "time",
    inspect.TimeDeltaType: "timedelta",
    inspect.DecimalType: "decimal",
    inspect.UUIDType: "uuid",
}


class _Reading(NamedTuple):
    """A place inside a type: which classes it stands in, and how deep."""

    classes: tuple[Any, ...]
    depth: int

    def schema(self, info: inspect.Type) -> Schema:
        """The description of the type at this place."""
        plain = _PLAIN.get(type(info))
        if plain is not None:
            return Schema(plain)
        if self.depth >= MOST_DEPTH:
            return ANY
        inside = self._replace(depth=self.depth + 1)
        match info:
            case inspect.Metadata():
                return self.schema(info.type)
            case inspect.EnumType():
                return _enum(info.cls.__name__, [member.value for member in info.cls])
            case inspect.LiteralType():
                return _literal(info.values)
            case inspect.ListType() | inspect.VarTupleType():
                return Schema("list", items=(inside.schema(info.item_type),))
            case inspect.SetType() | inspect.FrozenSetType():
                return Schema("set", items=(inside.schema(info.item_type),))
            case inspect.TupleType():
                return Schema("tuple", items=tuple(map(inside.schema, info.item_types)))
            case inspect.DictType():
                pair = (inside.schema(info.key_type), inside.schema(info.value_type))
                return Schema("map", items=pair)
            case inspect.UnionType():
                return _union([self.schema(member) for member in info.types])
            case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
                return inside.struct(info, array_like=getattr(info, "array_like", False))
            case inspect.NamedTupleType():
                return inside.struct(info, array_like=True)
            case _:
                return ANY

    def struct(self, info: Any, *, array_like: bool) -> Schema:
        """The description of a type with named fields, an array on the wire or not."""
        unnameable = any(_UNNAMEABLE.search(field.encode_name) for field in info.fields)
        if info.cls in self.classes or unnameable:
            return ANY
        inside = self._replace(classes=(*self.classes, info.cls))
        fields = [inside.field(field, array_like) for field in info.fields]
        if not array_like:
            fields.sort(key=lambda field: not field.required)
        return Schema(
            "struct",
            name=type_name(info.cls),
            fields=tuple(fields),
            array_like=array_like,
            tag_field=getattr(info, "tag_field", None),
            tag=getattr(info, "tag", None),
        )

    def field(self, field: inspect.Field, array_like: bool) -> Field:
        """The description of one of its fields."""
        schema = self.schema(field.type)
        if field.required:
            return Field(field.encode_name, schema)
        default = _default(field, schema)
        if default is None and schema.nullable and not array_like:
            schema = ANY  # None and missing are two things: a column has null for one of them only
        return Field(field.encode_name, schema, required=False, default=default)


def _enum(name: str, values: list[Any]) -> Schema:
    return Schema("enum", name=name, values=tuple(values))


def _literal(values: tuple[Any, ...]) -> Schema:
    members = [Schema("none")] if None in values else []
    known = sorted((v for v in values if v is not None), key=lambda v: (type(v).__name__, v))
    members += [_enum("", list(same)) for _, same in groupby(known, key=type)]
    return _union(members)


def _union(members: list[Schema]) -> Schema:
    if ANY in members:
        return ANY
    nullable = any(member.nullable or member.kind == "none" for member in members)
    found = [member for member in members if member.kind != "none"]
    if not found:
        return Schema("none")
    if len(found) > 1:
        return Schema("union", nullable=nullable, items=tuple(found))
    return msgspec.structs.replace(found[0], nullable=nullable)


def _default(field: inspect.Field, schema: Schema) -> str | None:
    """JSON of the field's default, when it says all and is the same every time."""
    make = field.default_factory
    try:
        value = field.default if make is msgspec.NODEFAULT else make()
        if value is msgspec.NODEFAULT:
            return None
        text = msgspec.json.encode(value)
        again = msgspec.msgpack.encode(msgspec.json.decode(text, type=wire_type(schema)))
        wanted = msgspec.msgpack.encode(value if make is msgspec.NODEFAULT else make())
    except Exception:  # a user's factory may raise anything, and then has no default to show
        return None
    return text.decode() if again == wanted else None


_WIRE: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "date": date,
    "datetime": datetime,
    "time": time,
    "timedelta": timedelta,
    "decimal": Decimal,
    "uuid": UUID,
}


@lru_cache(maxsize=4096)
def wire_type(schema: Schema, *, hashable: bool = False) -> Any:
    """A type that decodes and encodes the msgpack that ``schema`` describes, without its classes.

    Structs become frozen Structs made at run time, enums the type of their values, ``any`` stays
    `msgspec.Raw` bytes. With ``hashable`` the values can be keys: lists are tuples, sets frozensets
    and ``any`` is decoded.
    """
    kind = _wire(schema, hashable)
    return Union[kind, None] if schema.nullable else kind  # noqa: UP007


def _wire(schema: Schema, hashable: bool) -> Any:
    inner = partial(wire_type, hashable=hashable)
    match schema.kind:
        case "none":
            return None
        case "any":
            return Any if hashable else msgspec.Raw
        case "enum":
            return int if all(isinstance(value, int) for value in schema.values) else str
        case "list":
            element = inner(schema.items[0])
            return tuple[element, ...] if hashable else list[element]  # type: ignore[valid-type]
        case "set":
            element = wire_type(schema.items[0], hashable=True)
            return frozenset[element] if hashable else set[element]  # type: ignore[valid-type]
        case "tuple":
            return tuple[tuple(map(inner, schema.items))]  # type: ignore[misc]
        case "map":
            key = wire_type(schema.items[0], hashable=True)
            return dict[key, inner(schema.items[1])]  # type: ignore[misc, valid-type]
        case "union":
            return Union[tuple(map(inner, schema.items))]  # noqa: UP007
        case "struct":
            return _wire_struct(schema, hashable)
        case plain:
            return _WIRE[plain]


def _wire_struct(schema: Schema, hashable: bool) -> type[msgspec.Struct]:
    names: dict[str, str] = {}
    fields: list[Any] = []
    optional = False
    for number, field in enumerate(schema.fields):
        plain = field.name.isidentifier() and not field.name.startswith("__")
        name = field.name if plain else f"field_{number}"
        names[name] = field.name
        kind = wire_type(field.type, hashable=hashable)
        if field.default is not None:
            make = partial(msgspec.json.decode, field.default.encode(), type=kind)
            fields.append((name, kind, msgspec.field(default_factory=make)))
        elif optional or (not field.required and not schema.array_like):
            missing: Any = Union[kind, msgspec.UnsetType]  # noqa: UP007
            fields.append((name, missing, msgspec.UNSET))
        else:
            fields.append((name, kind))
            continue
        optional = True
    return msgspec.defstruct(
        schema.name or "Struct",
        fields,
        frozen=True,
        rename=names,
        array_like=schema.array_like,
        tag_field=schema.tag_field,
        tag=schema.tag,
    )


def shown(schema: Schema) -> str:
    """The type for people: ``Balance(account: str, total: int = 0)``, ``map[str, int] | None``."""
    text: str = schema.kind if schema.kind != "none" else "None"
    match schema.kind:
        case "enum":
            values = ", ".join(map(repr, schema.values))
            text = f"{schema.name or 'enum'}({values})"
        case "list" | "set" | "tuple" | "map":
            text = f"{schema.kind}[{', '.join(map(shown, schema.items))}]"
        case "union":
            text = " | ".join(map(shown, schema.items))
        case "struct":
            text = f"{schema.name or 'struct'}({', '.join(map(_shown_field, schema.fields))})"
    return f"{text} | None" if schema.nullable else text


def _shown_field(field: Field) -> str:
    default = "" if field.required else f" = {field.default or '...'}"
    return f"{field.name}: {shown(field.type)}{default}"


def difference(saved: Schema, declared: Schema) -> str | None:
    """Why ``declared`` cannot read what was saved as ``saved``; None when it can.

    It can when both are equal, and when ``declared`` takes more: new fields with defaults, None,
    more members of a union or an enum. The sentence names the field.
    """
    return _difference(saved, declared, "")


def key_difference(saved: Schema, declared: Schema) -> str | None:
    """`difference` of the keys of a state; keys of an unknown type may get any declared one.

    Their bytes do not depend on the declaration, and a restore decodes every one of them.
    """
    found = None if saved.kind == "any" else difference(saved, declared)
    return None if found is None else f"its keys changed: {found}"


def _difference(saved: Schema, declared: Schema, path: str) -> str | None:
    if declared.kind == "any":
        return None
    if saved.nullable and not declared.nullable:
        return _changed(saved, declared, path)
    if declared.kind == "union" or saved.kind == "union":
        for member in saved.items if saved.kind == "union" else (saved,):
            if not any(_difference(member, other, path) is None for other in _members(declared)):
                return _changed(saved, declared, path)
        return None
    if saved.kind == "none" and declared.nullable:
        return None
    if saved.kind != declared.kind or len(saved.items) != len(declared.items):
        return _changed(saved, declared, path)
    match saved.kind:
        case "enum":
            gone = [value for value in saved.values if value not in declared.values]
            return f"{_at(path)} has no member {gone[0]!r} any more" if gone else None
        case "struct":
            return _struct_difference(saved, declared, path)
    names = {"map": ("keys", "values"), "list": ("elements",), "set": ("elements",)}
    parts = names.get(saved.kind, tuple(f"_{n}" for n in range(1, len(saved.items) + 1)))
    for part, old, new in zip(parts, saved.items, declared.items, strict=True):
        found = _difference(old, new, f"{path}.{part}" if path else part)
        if found is not None:
            return found
    return None


def _members(schema: Schema) -> tuple[Schema, ...]:
    return schema.items if schema.kind == "union" else (schema,)


def _struct_difference(saved: Schema, declared: Schema, path: str) -> str | None:
    if saved.array_like != declared.array_like:
        forms = ["an array" if schema.array_like else "an object" for schema in (saved, declared)]
        return f"{_at(path)} was {forms[0]}, is {forms[1]}"
    if (saved.tag_field, saved.tag) != (declared.tag_field, declared.tag):
        tags = [f"{schema.tag_field}={schema.tag!r}" for schema in (saved, declared)]
        return f"{_at(path)} was tagged {tags[0]}, is {tags[1]}"
    if saved.array_like:
        pairs = list(zip(saved.fields, declared.fields, strict=False))
        gone = saved.fields[len(pairs) :]
        new = declared.fields[len(pairs) :]
    else:
        now = {field.name: field for field in declared.fields}
        had = {field.name for field in saved.fields}
        pairs = [(field, now[field.name]) for field in saved.fields if field.name in now]
        gone = tuple(field for field in saved.fields if field.name not in now)
        new = tuple(field for field in declared.fields if field.name not in had)
    for field in gone:
        return f"{_at(_join(path, field.name))} is gone"
    for field in new:
        if field.required:
            return f"{_at(_join(path, field.name))} is new and has no default"
    for old, field in pairs:
        at = _join(path, old.name)
        if field.required and old.may_be_absent:
            return f"{_at(at)} could be missing, and is required"
        found = _difference(old.type, field.type, at)
        if found is not None:
            return found
    return None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _at(path: str) -> str:
    return f"field {path!r}" if path else "it"


def _changed(saved: Schema, declared: Schema, path: str) -> str:
    return f"{_at(path)} was {shown(saved)}, is {shown(declared)}"


_ITEMS: dict[str, int] = {"list": 1, "set": 1, "map": 2}


def flaw(schema: Schema, depth: int = 0) -> str | None:
    """What is wrong with a schema that came from outside; None when `wire_type` can make its type.

    Look before anything else is done with it: it may be nested too deeply for recursion.
    """
    if depth > MOST_DEPTH:
        return f"it is nested more than {MOST_DEPTH} deep"
    wanted = _ITEMS.get(schema.kind, 0)
    if schema.kind not in ("tuple", "union") and len(schema.items) != wanted:
        return f"a {schema.kind} has {len(schema.items)} items, expected {wanted}"
    if schema.kind == "union" and len(schema.items) < 2:
        return "a union has fewer than 2 members"
    if schema.kind != "struct" and schema.fields:
        return f"a {schema.kind} has fields"
    names = [field.name for field in schema.fields]
    if len(set(names)) != len(names):
        return f"struct {schema.name!r} has a field twice"
    parts: Iterable[Schema] = (*schema.items, *(field.type for field in schema.fields))
    found = next((reason for part in parts if (reason := flaw(part, depth + 1))), None)
    if found is None and depth == 0:
        found = _refused(schema)
    return found


def _refused(schema: Schema) -> str | None:
    """What msgspec has against the type."""
    try:
        msgspec.msgpack.Decoder(wire_type(schema))
        for field in schema.fields:
            if field.default is not None:
                msgspec.json.decode(field.default, type=wire_type(field.type))
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        return str(error)
    return None
