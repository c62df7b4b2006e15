"""Options of the data source: every one typed, wrong ones named, none ignored."""

import pytest
from penstock import ConfigurationError
from penstock_spark.options import NAMES, ReadOptions, parsed

PATH = {"path": "file:///savepoints/s1"}


def test_names_come_without_case() -> None:
    given = {**PATH, "operatoruid": "ledger", "STATENAME": "balance", "keygroups": "3-7"}
    assert parsed(given) == ReadOptions(PATH["path"], "ledger", "balance", key_groups=range(3, 8))


def test_everything_at_once() -> None:
    found = parsed({**PATH, "app": "payments", "checkpointId": "7", "columns": "key, total"})
    assert (found.app, found.checkpoint, found.columns) == ("payments", 7, ("key", "total"))
    assert parsed({**PATH, "app": "payments", "checkpointId": "latest"}).checkpoint is None
    assert parsed({**PATH, "readTimers": "TRUE"}).timers
    assert parsed({**PATH, "metadata": "Files"}).metadata == "files"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "no path"),
        ({**PATH, "stateNames": "x"}, f"no option 'stateNames'; it has {', '.join(NAMES)}"),
        ({**PATH, "keyGroups": "7-3"}, "keyGroups is '7-3'; expected FIRST-LAST"),
        ({**PATH, "keyGroups": "all"}, "keyGroups is 'all'"),
        ({**PATH, "metadata": "rows"}, "metadata is 'rows'; expected operators or states or"),
        ({**PATH, "readTimers": "yes"}, "readTimers is 'yes'; expected true or false"),
        ({**PATH, "readTimers": "true", "stateName": "x"}, "exclude each other"),
        ({**PATH, "columns": "a,,b"}, "columns is 'a,,b'"),
        ({**PATH, "columns": "a,a"}, "different names"),
        ({**PATH, "checkpointId": "7"}, "needs option app"),
        ({**PATH, "checkpointId": "latest"}, "needs option app"),
        ({**PATH, "app": "a", "checkpointId": "-1"}, "expected a checkpoint's number or 'latest'"),
        ({**PATH, "metadata": "files", "operatorUid": "x"}, "takes no option operatorUid"),
        ({**PATH, "metadata": "timers", "stateName": "x"}, "takes no option stateName"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parsed(options)
    assert complaint in str(refused.value)


def test_a_range_of_one_group() -> None:
    assert parsed({**PATH, "keyGroups": "5"}).key_groups == range(5, 6)
    assert parsed({**PATH, "keyGroups": "0-0"}).key_groups == range(1)
