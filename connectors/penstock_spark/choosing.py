"""Which state of a savepoint is meant: named by options, or the only one that there is."""

from penstock.failure import ConfigurationError
from penstock.savepoint.manifest import KEYED_KINDS, OperatorEntry, StateEntry
from penstock.savepoint.reading import Savepoint
from penstock.schema import shown

from penstock_spark.options import ReadOptions

Chosen = tuple[OperatorEntry, StateEntry]
MOST_NAMED = 20


def chosen(savepoint: Savepoint, options: ReadOptions) -> Chosen:
    """The state that ``options`` mean.

    Raises ConfigurationError naming what there is when they mean none or several.
    """
    if options.operator is not None and options.state is not None:
        operator = savepoint.operator(options.operator)
        return operator, savepoint.state(operator.uid, options.state)
    found = _candidates(savepoint, options)
    if len(found) == 1:
        return found[0]
    kind = "timers" if options.timers else "keyed states"
    asked = "option operatorUid" if options.timers else "options operatorUid and stateName"
    if not found:
        raise ConfigurationError(
            f"savepoint {savepoint.url} has no {kind} that fit the options; it has "
            f"{_listed([(o, s) for o in savepoint.manifest.operators for s in o.states])}"
        )
    raise ConfigurationError(
        f"savepoint {savepoint.url} has {len(found)} {kind} that fit the options: say which by "
        f"{asked}; there are {_listed(found)}"
    )


def _candidates(savepoint: Savepoint, options: ReadOptions) -> list[Chosen]:
    operators = savepoint.manifest.operators
    if options.operator is not None:
        operators = (savepoint.operator(options.operator),)
    every = [(operator, state) for operator in operators for state in operator.states]
    if options.timers:
        return [(o, s) for o, s in every if s.kind == "timers"]
    every = [(o, s) for o, s in every if s.kind != "timers"]
    if options.state is not None:
        return [(o, s) for o, s in every if s.name == options.state]
    if options.operator is not None and len(every) == 1:
        return every
    return [(o, s) for o, s in every if s.kind in KEYED_KINDS]


def _listed(found: list[Chosen]) -> str:
    names = [
        f"{operator.uid}/{state.name} ({state.kind} {shown(state.value)})"
        for operator, state in found[:MOST_NAMED]
    ]
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return (", ".join(names) or "no state at all") + more
