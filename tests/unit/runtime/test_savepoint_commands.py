"""``penstock savepoint`` and ``penstock checkpoint`` on folders, without servers."""

import io
import json
from pathlib import Path

import msgspec
import pytest
from penstock.checkpoint import history as hist
from penstock.failure import ConfigurationError, StoreFailed
from penstock.ids import CheckpointId
from penstock.runtime import retained, savepoint_listing
from penstock.runtime.cli import main
from penstock.savepoint import manifest as manifests
from penstock.savepoint.layout import state_entry
from penstock.savepoint.reading import Savepoint
from penstock.schema import schema_of
from penstock.snapshot.manifest import object_keys
from penstock_minio import FileStore

from tests.unit.savepoint.every_state import Command, savepoint_of
from tests.unit.savepoint.test_round_trip import driven
from tests.unit.spark.savepoints import BALANCE, Balance, ledger, operator, written

Said = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_STORE", (tmp_path / "store").as_uri())
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP", raising=False)
    monkeypatch.setenv("COLUMNS", "80")


def folder(tmp_path: Path, name: str, app: str = "payments") -> Path:
    return tmp_path / "store" / app / "savepoints" / name


def ran(*arguments: object) -> int:
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as ended:
        return int(ended.code or 0)


def refused(said: Said, *arguments: object) -> str:
    """The one line on standard error of a command that exits with 2."""
    assert ran(*arguments) == 2
    captured = said.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def changed(path: Path, **changes: object) -> None:
    """Another manifest, whose own sum is right again."""
    store = FileStore(path)
    found = Savepoint.open(store).manifest
    store.delete([manifests.MANIFEST_KEY])
    data = manifests.encode(msgspec.structs.replace(found, **changes))
    store.put(manifests.MANIFEST_KEY, data)


# -- list


def test_list_of_an_application(tmp_path: Path, capsys: Said) -> None:
    ledger(folder(tmp_path, "a"))
    ledger(folder(tmp_path, "before"), 20)
    changed(folder(tmp_path, "before"), created_at_ms=0)
    (folder(tmp_path, "z") / "data/u/s").mkdir(parents=True)
    (folder(tmp_path, "z") / f"data/u/s/{'0' * 32}.parquet").touch()
    FileStore(folder(tmp_path, "y")).put("manifest.json", b"{}")
    assert ran("savepoint", "list", "payments") == 0
    where, head, *rows = capsys.readouterr().out.splitlines()
    assert where == f"{(tmp_path / 'store').as_uri()}/payments/savepoints"
    assert head.split() == ["name", "created", "(UTC)", "checkpoint", "rows", "size"]
    assert rows[0].split()[:4] == ["before", "1970-01-01", "00:00:00", "7"]
    assert rows[1].split()[:1] == ["a"]
    assert rows[2].startswith("  y: the manifest of savepoint")
    assert "  z: unfinished: it has no manifest" in rows
    assert max(map(len, [head, *rows[:2]])) <= 80


def test_list_as_json(tmp_path: Path, capsys: Said) -> None:
    made = ledger(folder(tmp_path, "a"), 20)
    rows = sum(file.rows for file in made.manifest.files)
    for place in ("payments", (tmp_path / "store").as_uri(), made.url):
        assert ran("savepoint", "list", place, "--json") == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert found["url"] == made.url
        assert (found["app"], found["checkpoint"], found["rows"]) == ("payments", 7, rows)


def test_list_of_nothing(tmp_path: Path, capsys: Said) -> None:
    ledger(folder(tmp_path, "a"), 20)
    assert "did you mean 'payments'?" in refused(capsys, "savepoint", "list", "paymnets")
    (tmp_path / "store/other/manifests").mkdir(parents=True)
    (tmp_path / "store/other/manifests/1-0.json").touch()
    assert ran("savepoint", "list", "other") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "there is no savepoint in" in captured.err


def test_an_import_is_no_savepoint(tmp_path: Path, capsys: Said) -> None:
    """A restored savepoint lies in the store as a checkpoint, in a folder of this name."""
    FileStore(tmp_path / "store").put("payments/imports/3-1/manifest.json", b"{}")
    assert ran("savepoint", "list", (tmp_path / "store").as_uri(), "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


# -- inspect


def test_inspect(tmp_path: Path, capsys: Said) -> None:
    made = ledger(folder(tmp_path, "a"))
    assert ran("savepoint", "inspect", made.url) == 0
    text = capsys.readouterr().out
    for part in (
        made.url,
        "  application  payments",
        "created      1970-01-01 00:00:00 UTC by penstock 0",
        "  orders reads topic orders, next offset of each partition\n    0: 10   1: 20",
        "operator ledger\n  keyed_process in stage ledger, parallelism 2, owned by key group",
        "  balance: value, 200 rows, ",
        '    value  Balance(account: str, total: int = 0, key: str = "")',
        "    value  map[str, float]",
        "operator rules",
    ):
        assert part in text
    assert "made of" not in text
    assert max(map(len, text.splitlines()[1:])) <= 80


def test_inspect_as_json(tmp_path: Path, capsys: Said) -> None:
    made = ledger(folder(tmp_path, "a"))
    assert ran("savepoint", "inspect", made.url, "--json", "--verify") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sources"][0]["positions"] == {"0": 10, "1": 20}
    (balance,) = (s for o in found["operators"] for s in o["states"] if s["name"] == "balance")
    files = made.files("ledger", "balance")
    assert (balance["rows"], balance["files"]) == (200, len(files)) == (200, 4)
    assert balance["bytes"] == sum(file.bytes for file in files)
    assert balance["key"] == "str"
    assert balance["key_groups"] == [files[0].key_group_min, files[-1].key_group_max]
    assert (found["verified"], found["damaged"]) == (True, {})


def test_verify_names_every_damaged_file(tmp_path: Path, capsys: Said) -> None:
    made = ledger(folder(tmp_path, "a"))
    spoilt = [file.path for file in made.manifest.files][1:3]
    for path in spoilt:
        (folder(tmp_path, "a") / path).write_bytes(b"spoilt")
    assert ran("savepoint", "inspect", made.url) == 0
    capsys.readouterr()
    assert ran("savepoint", "inspect", made.url, "--verify", "--json") == 3
    captured = capsys.readouterr()
    assert list(json.loads(captured.out)["damaged"]) == spoilt
    assert all(path in captured.err for path in spoilt)
    assert f"2 of {len(made.manifest.files)} files are damaged" in captured.err


def test_verify_finds_a_key_in_a_wrong_group(tmp_path: Path, capsys: Said) -> None:
    made = ledger(folder(tmp_path, "a"), 1, file_rows=9)
    changed(folder(tmp_path, "a"), max_parallelism=127)
    assert ran("savepoint", "inspect", made.url, "--verify") == 3
    assert "in key group" in capsys.readouterr().err


def test_rows(tmp_path: Path, capsys: Said) -> None:
    made = ledger(folder(tmp_path, "a"))
    chosen = ("savepoint", "inspect", made.url, "--operator", "ledger", "--state", "balance")
    assert ran(*chosen, "--rows", "70") == 0  # more than a file has
    captured = capsys.readouterr()
    head, *rows = captured.out.splitlines()
    assert head.split() == ["key", "key_group", "account", "total", "value_key"]
    assert len(rows) == 70
    key, _, account, total, value_key = rows[69].split()
    assert (account, total, value_key) == (key, f"{int(key[4:]) * 10}", f"k{key[4:]}")
    assert "70 of 200 rows of ledger.balance" in captured.err
    assert ran(*chosen, "--rows", "1", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["total"] == int(row["account"][4:]) * 10
    assert ran("savepoint", "inspect", made.url, "--rows", "9", "--operator", "rules") == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["1", "0", "c"]


def test_rows_of_nobody(tmp_path: Path, capsys: Said) -> None:
    made = ledger(folder(tmp_path, "a"), 20)
    inspect = ("savepoint", "inspect", made.url)
    for arguments, expected in (
        (("--rows", "3"), "name the operator with --operator: ledger, rules"),
        (("--rows", "3", "--operator", "ledgr"), "did you mean 'ledger'?"),
        (("--rows", "3", "--operator", "ledger"), "with --state: balance, history, limits, timers"),
        (("--rows", "3", "--operator", "ledger", "--state", "limit"), "did you mean 'limits'?"),
        (("--rows", "-3"), "'-3' is not a whole number"),
        (("--state", "limits"), "choose the rows to show: give --rows N"),
    ):
        assert expected in refused(capsys, *inspect, *arguments)


def test_hostile_text_does_not_reach_the_terminal(tmp_path: Path, capsys: Said) -> None:
    evil = "\x1b[2J\x9b5m\u202e"
    states = {("ledger", "balance"): {"k": Balance(f"x{evil}\ny", 1)}}
    made = written(FileStore(folder(tmp_path, "a")), states, [operator("ledger", BALANCE)])
    changed(folder(tmp_path, "a"), parent=evil, created_by=evil)
    for more in ((), ("--json",), ("--rows", "5"), ("--rows", "5", "--json")):
        assert ran("savepoint", "inspect", made.url, *more) == 0
        out = capsys.readouterr().out
        assert not set(evil[:1] + "\x9b\u202e") & set(out)
        if "--json" in more:
            text = json.dumps(json.loads(out), ensure_ascii=False)
            assert (
                json.loads(json.dumps(evil)) in json.loads(out)[0]["account"]
                if ("--rows" in more)
                else evil in json.loads(text)["parent"]
            )


# -- diff


def test_diff_of_equal_savepoints(tmp_path: Path, capsys: Said) -> None:
    a, b = ledger(folder(tmp_path, "a")), ledger(folder(tmp_path, "b"), file_rows=7)
    assert ran("savepoint", "diff", a.url, b.url) == 0
    rows = sum(file.rows for file in a.manifest.files)
    assert f"equal: 5 states, {rows} rows" in capsys.readouterr().out


def test_diff(tmp_path: Path, capsys: Said) -> None:
    first = savepoint_of(driven([Command("a"), Command("b")]).checkpoint(),
                         FileStore(folder(tmp_path, "a")))  # fmt: skip
    second = savepoint_of(driven([Command("a", number=2), Command("c")]).checkpoint(),
                          FileStore(folder(tmp_path, "b")))  # fmt: skip
    assert ran("savepoint", "diff", first.url, second.url, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    rows = {each["state"]: each for each in found["rows"]}
    counts = ("only_a", "only_b", "different", "equal")
    assert [rows["account"][name] for name in counts] == [1, 1, 1, 0]
    assert rows["least"]["examples"] == [
        {"key": "b", "side": "a", "columns": {}},
        {"key": "c", "side": "b", "columns": {}},
        {"key": "a", "side": "both", "columns": {"value": ["1", "2"]}},
    ]
    assert ran("savepoint", "diff", first.url, second.url, "--examples", "1") == 1
    text = capsys.readouterr().out
    assert "everything.account          1          1          1      0" in text
    assert "  only in A  b\n  only in B  c\n  differs    a\n    value: 1 -> 2" in text
    assert max(map(len, text.splitlines()[2:])) <= 80


def test_diff_of_other_graphs(tmp_path: Path, capsys: Said) -> None:
    a = ledger(folder(tmp_path, "a"), 20)
    sums = state_entry("sums", "value", schema_of(str), schema_of(int))
    total = state_entry("balance", "value", schema_of(str), schema_of(int))
    states = {("ledger", "balance"): {"acc-1": 10}, ("extra", "sums"): {"x": 1}}
    operators = [operator("ledger", total), operator("extra", sums)]
    b = written(FileStore(folder(tmp_path, "b")), states, operators)
    changed(folder(tmp_path, "b"), sources=())
    assert ran("savepoint", "diff", a.url, b.url) == 1
    text = capsys.readouterr().out
    assert "only in A: rules, ledger.history, ledger.limits, ledger.timers" in text
    assert "only in B: extra" in text
    assert "  ledger.balance: value\n    A  Balance(account" in text
    assert "    B  int" in text
    assert "positions moved in 2 partitions" in text
    assert "ledger.balance         19          0          1      0" in text


# -- dispose


def test_dispose(tmp_path: Path, capsys: Said) -> None:
    made = ledger(folder(tmp_path, "a"), 20)
    other = ledger(folder(tmp_path, "b"), 20)
    question = refused(capsys, "savepoint", "dispose", made.url)
    assert "this would delete savepoint" in question
    assert "of application 'payments', checkpoint 7" in question
    assert question.endswith("say so with --yes")
    assert Savepoint.open(FileStore(folder(tmp_path, "a"))).manifest == made.manifest
    assert ran("savepoint", "dispose", made.url, "--yes") == 0
    assert FileStore(folder(tmp_path, "a")).list("") == []
    assert ran("savepoint", "inspect", other.url, "--verify") == 0
    capsys.readouterr()
    assert "there is no savepoint at" in refused(capsys, "savepoint", "dispose", made.url, "--yes")


@pytest.mark.parametrize(("answer", "is_gone"), [("y\n", True), ("\n", False), ("no\n", False)])
def test_dispose_asks(
    answer: str, is_gone: bool, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(answer))
    made = ledger(folder(tmp_path, "a"), 20)
    expected = 0 if is_gone else savepoint_listing.KEPT
    assert ran("savepoint", "dispose", made.url) == expected
    assert (FileStore(folder(tmp_path, "a")).list("") == []) == is_gone
    assert "? [y/N] " in capsys.readouterr().err


# -- what is not there


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("{base}/payments/savepoints/befor", "; did you mean 'before'?"),
        ("{base}/payments/savepoints/x", "; there are before"),
        ("{base}/nobody", "it has no manifest.json; penstock savepoint list APP shows"),
        ("{base}/payments/manifests/7-1.json", "make a savepoint of it with penstock savepoint co"),
        (
            "before",
            "'before' is not the URL of a savepoint: give s3://BUCKET/PREFIX or file:///DIR",
        ),
        ("http://x/y", "the store's URL does not start with s3:// or file://"),
        ("s3://bucket/x", "needs PENSTOCK_S3_ENDPOINT"),
    ],
)
def test_no_savepoint(
    url: str, expected: str, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_S3_ENDPOINT", raising=False)
    made = ledger(folder(tmp_path, "before"), 20)
    url = url.format(base=(tmp_path / "store").as_uri())
    for command in (("inspect", url), ("diff", made.url, url), ("dispose", url, "--yes")):
        assert expected in refused(capsys, "savepoint", *command)


def test_a_later_format(tmp_path: Path, capsys: Said) -> None:
    made = ledger(folder(tmp_path, "a"), 20)
    changed(folder(tmp_path, "a"), format_version=2)
    for command in (("inspect", made.url), ("diff", made.url, made.url), ("dispose", made.url)):
        assert "has format version 2, this penstock reads 1" in refused(
            capsys, "savepoint", *command
        )


# -- making one


def retained_in(tmp_path: Path, *checkpoints: int) -> FileStore:
    """A store with checkpoints of application ``app``, and what they need of those before."""
    store = FileStore(tmp_path / "store")
    run = driven([Command("a"), Command("b")])
    for number in range(1, max(checkpoints) + 1):
        taken = run.checkpoint()
        run.send("commands", Command(f"new-{number}"))
        if number in checkpoints:
            for key in object_keys(taken.manifest) | {taken.key}:
                store.put(key, taken.objects[key])
    return store


def completed(*checkpoints: int) -> hist.History:
    pairs = tuple((CheckpointId(n), f"app/manifests/{n}-0.json") for n in checkpoints)
    return hist.History(completed=pairs)


def test_convert_by_manifest(tmp_path: Path, capsys: Said) -> None:
    store = retained_in(tmp_path, 3)
    convert = ("savepoint", "convert", "app", "--manifest", "app/manifests/3-0.json")
    assert ran(*convert) == 0
    captured = capsys.readouterr()
    url = f"{store.url}/app/savepoints/checkpoint-3"
    assert captured.out == f"{url}\n"
    assert "reads checkpoint 3 of application 'app'" in captured.err
    made = Savepoint.open(FileStore(folder(tmp_path, "checkpoint-3", "app")))
    assert (made.manifest.savepoint_id, made.manifest.checkpoint) == ("checkpoint-3", 3)
    assert made.manifest.parent == f"{store.url}/app/manifests/3-0.json"
    assert made.table("everything", "account").num_rows == 4
    assert f"there is a savepoint at {url} already" in refused(capsys, *convert)
    assert ran(*convert, "--name", "other", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["url"] == f"{store.url}/app/savepoints/other"
    assert told["rows"] == sum(file.rows for file in made.manifest.files)
    elsewhere = (tmp_path / "elsewhere/X=1").as_uri()
    assert ran(*convert, "--to", elsewhere) == 0
    assert Savepoint.open(FileStore(tmp_path / "elsewhere/X=1")).manifest.savepoint_id == (
        "checkpoint-3"  # the folder's own name cannot be one
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("app", "--manifest", "app/manifests/3-1.json"), "did you mean 'app/manifests/3-0.json'?"),
        (("app", "--manifest", "zz"), "has no manifest 'zz'; there is 'app/manifests/3-0.json'"),
        (("ap", "--manifest", "ap/manifests/3-0.json"), "did you mean 'app'?"),
        (("app",), "without Kafka name a manifest in the store: --manifest app/manifests/CHECK"),
        (("app", "--manifest", "x", "--checkpoint", "3"), "not allowed with argument"),
        (("app", "--name", "My X"), "savepoint 'My X' is not a valid name"),
        (("My X",), "application id 'My X' is not a valid name"),
        (("app", "--manifest", "app/manifests/3-0.json", "--to", "x"), "--to 'x' is not a URL"),
    ],
)
def test_convert_refused(
    arguments: tuple[str, ...], expected: str, tmp_path: Path, capsys: Said
) -> None:
    retained_in(tmp_path, 3)
    assert expected in refused(capsys, "savepoint", "convert", *arguments)


def test_a_savepoint_has_a_folder_of_its_own(tmp_path: Path, capsys: Said) -> None:
    store = retained_in(tmp_path, 3)
    convert = ("savepoint", "convert", "app", "--manifest", "app/manifests/3-0.json")
    said = refused(capsys, *convert, "--to", store.url)
    assert "holds other files, like 'app/" in said
    assert "give the savepoint a folder of its own" in said


def test_what_a_failure_leaves_is_named_and_can_be_deleted(tmp_path: Path, capsys: Said) -> None:
    """Without its manifest it is no savepoint; what was written of it is."""
    store = retained_in(tmp_path, 3)
    convert = ("savepoint", "convert", "app", "--manifest", "app/manifests/3-0.json", "--name", "x")
    target = folder(tmp_path, "x", "app")
    (target / ".manifest").mkdir(parents=True)  # no key: nobody's file
    whole = FileStore.put

    def put(self: FileStore, key: str, data: bytes) -> None:
        if key == "manifest.json":
            raise StoreFailed("the disk is full")
        whole(self, key, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileStore, "put", put)
        assert ran(*convert) == 3
    said = capsys.readouterr().err
    url = f"{store.url}/app/savepoints/x"
    assert (
        f"files without a manifest are left; delete them: penstock savepoint dispose {url}" in said
    )
    assert "there is no savepoint at" in refused(capsys, "savepoint", "inspect", url)
    assert "files without a manifest" in refused(capsys, "savepoint", "dispose", url)
    assert ran("savepoint", "dispose", url, "--yes") == 0
    assert FileStore(target).list("") == []
    assert ran(*convert) == 0


def test_checkpoints_that_are_retained(tmp_path: Path) -> None:
    store = retained_in(tmp_path, 3, 4, 5)
    found = retained.checkpoints(completed(0, 1, 2, 3, 4, 5), "app", store)
    # The first two are whole, too: others need the small chunks that stand in their manifests.
    assert [(each.checkpoint, each.flaw) for each in found] == [(n, "") for n in (1, 2, 3, 4, 5)]
    assert [each.manifest for each in found] == [f"app/manifests/{n}-0.json" for n in range(1, 6)]
    assert all(each.subtasks == 4 and each.attempt == 1 for each in found)
    assert found[-1].bytes == len(store.get("app/manifests/5-0.json"))
    assert retained.chosen(found, None, "it", "there").checkpoint == 5
    assert retained.chosen(found, 3, "it", "there").checkpoint == 3
    with pytest.raises(
        ConfigurationError, match=r"checkpoint 0 .* have it; there are 1, 2, 3, 4, 5"
    ):
        retained.chosen(found, 0, "it", "there")


def test_damaged_checkpoints_are_named(tmp_path: Path) -> None:
    store = retained_in(tmp_path, 3, 4, 5)
    store.delete(["app/manifests/5-0.json"])
    path = tmp_path / "store/app/manifests/4-0.json"
    path.write_bytes(path.read_bytes()[:-9])
    found = retained.checkpoints(completed(1, 2, 3, 4, 5), "app", store)
    assert [(each.checkpoint, each.flaw) for each in found] == [
        (1, ""), (2, ""), (3, ""), (4, "its manifest is damaged"), (5, "its manifest is missing")
    ]  # fmt: skip
    assert retained.chosen(found, None, "it", "there").checkpoint == 3
    with pytest.raises(ConfigurationError, match="checkpoint 5 of it cannot be used: its manifest"):
        retained.chosen(found, 5, "it", "there")


def test_a_checkpoint_without_its_state_cannot_be_restored(tmp_path: Path) -> None:
    store = retained_in(tmp_path, 3)
    store.delete(["app/manifests/1-0.json"])
    (found,) = retained.checkpoints(completed(3), "app", store)
    assert found.flaw == "app/manifests/1-0.json is missing"
    with pytest.raises(ConfigurationError, match="nor can another: is it the store that"):
        retained.chosen([found], None, "it", "there")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("trigger", "app", "--name", "a", "--to", "file:///x"),
            "not allowed with argument --name",
        ),
        (("trigger", "app", "--timeout-s", "soon"), "'soon' is not a number of seconds"),
        (("trigger", "app", "--timeout-s", "0"), "0 is not a time that one can wait"),
        (("trigger", "app"), "no Kafka cluster is named: pass --bootstrap"),
        (("trgger",), "invalid choice: 'trgger'"),
        ((), "the following arguments are required: COMMAND; see penstock savepoint --help"),
    ],
)
def test_nonsense(arguments: tuple[str, ...], expected: str, capsys: Said) -> None:
    assert expected in refused(capsys, "savepoint", *arguments)
