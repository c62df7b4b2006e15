"""A column that is compared: when its two values are equal, and what lies between two numbers."""

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql import types as st

_WHOLE = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
_FLOATING = (st.FloatType, st.DoubleType)


@dataclass(frozen=True)
class ComparedColumn:
    """One column that both sides have; ``a``, ``b`` and ``delta`` are its names in the rows."""

    name: str
    type_a: st.DataType
    type_b: st.DataType
    a: str
    b: str
    delta: str | None
    """None where no b - a is defined: one side is not a number."""

    def differs(self, a: Column, b: Column) -> Column:
        """Whether the two values of a row that both sides have are different; never null.

        Null equals null, NaN equals NaN, maps are equal whatever the order of their entries, and
        numbers of different types are equal when their values are. Values of other different
        types differ, unless both are null.
        """
        if is_number(self.type_a) and is_number(self.type_b):
            return ~a.eqNullSafe(b)
        if not same_shape(self.type_a, self.type_b):
            return a.isNotNull() | b.isNotNull()
        return ~comparable(a, self.type_a).eqNullSafe(comparable(b, self.type_b))

    def between(self, a: Column, b: Column) -> Column:
        """What lies between, b - a: exact for whole numbers and decimals.

        Null where one of them is null or not finite, or where b - a does not fit its type.
        """
        if isinstance(self.type_a, _FLOATING) or isinstance(self.type_b, _FLOATING):
            between = b.cast("double") - a.cast("double")
            return sf.when(sf.abs(between) < sf.lit(float("inf")), between)
        if isinstance(self.type_a, _WHOLE) and isinstance(self.type_b, _WHOLE):
            return sf.try_subtract(b.cast("bigint"), a.cast("bigint"))
        return sf.try_subtract(b, a)


def quoted(name: str) -> Column:
    """The column of this very name, whatever dots and backticks it holds."""
    return sf.col("`" + name.replace("`", "``") + "`")


def is_number(kind: st.DataType) -> bool:
    """Whether b - a is defined for values of this type."""
    return isinstance(kind, (*_WHOLE, *_FLOATING, st.DecimalType))


def holds_map(kind: st.DataType) -> bool:
    """Whether a map is anywhere in this type: Spark neither compares nor groups by maps."""
    match kind:
        case st.MapType():
            return True
        case st.ArrayType():
            return holds_map(kind.elementType)
        case st.StructType():
            return any(holds_map(field.dataType) for field in kind.fields)
    return False


def same_shape(a: st.DataType, b: st.DataType) -> bool:
    """Whether both are one type, apart from what may be null and from the order of fields."""
    match a, b:
        case st.ArrayType(), st.ArrayType():
            return same_shape(a.elementType, b.elementType)
        case st.MapType(), st.MapType():
            keys = same_shape(a.keyType, b.keyType)
            return keys and same_shape(a.valueType, b.valueType)
        case st.StructType(), st.StructType():
            return sorted(a.names) == sorted(b.names) and all(
                same_shape(field.dataType, b[field.name].dataType) for field in a.fields
            )
    return type(a) is type(b) and (not isinstance(a, st.DecimalType) or a == b)


def comparable(value: Column, kind: st.DataType) -> Column:
    """The same value in a form that Spark can compare: maps as sorted lists of their entries."""
    match kind:
        case st.MapType():
            entry = st.StructType().add("key", kind.keyType).add("value", kind.valueType)
            return sf.array_sort(comparable(sf.map_entries(value), st.ArrayType(entry)))
        case st.ArrayType():
            element = kind.elementType
            if not _needs_form(element):
                return value
            return sf.transform(value, lambda each: comparable(each, element))
        case st.StructType():
            if not _needs_form(kind):
                return value
            fields = sorted(kind.fields, key=lambda field: field.name)
            parts = [
                comparable(value.getField(field.name), field.dataType).alias(f"f{number}")
                for number, field in enumerate(fields)
            ]
            return sf.when(value.isNotNull(), sf.struct(*parts))
    return value


def _needs_form(kind: st.DataType) -> bool:
    return isinstance(kind, st.StructType) or holds_map(kind)
