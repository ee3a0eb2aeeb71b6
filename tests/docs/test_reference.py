"""What the docs list is what the code has: parameters, commands, types, fields, messages."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import typer

from docs.blocks import ROOT
from fix_postgres import Database
from penstock import errors
from penstock.cli.main import app
from penstock.commands import subscriptioncmds
from penstock.guc import INT_MAX
from penstock.lakehouse.cuts import SCHEMA
from penstock.lakehouse.names import column_names, folder_name
from penstock.lakehouse.schema import delta_type
from penstock.lsn import Lsn
from penstock.node import guc
from penstock.node.guc import Integer, Real
from penstock.node.monitoring import (
    NodeCollector,
    NodeReport,
    SenderReport,
    SequencerReport,
    SlotReport,
)
from penstock.node.status import SubscriptionStatus, TableStatus, json_fields
from penstock.node.verify import Verification, VerifiedTable
from penstock.node.verify import as_json as verification_json
from penstock.pg_catalog.rows import catalogs
from penstock.pgtypes import arrow_type
from penstock.pipeline.compare_tables import RowDifference, TableDifference
from penstock.subscription.retry import max_tries

_SOURCES = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "src").rglob("*.py")))

_SPARK_NAMES = {
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
}
"""Spark SQL's names of Delta's types, where they differ."""


def rows(page: str, header: str) -> list[list[str]]:
    """Cells of the tables of a page whose header line begins with ``header``."""
    found: list[list[str]] = []
    inside = False
    for line in (ROOT / page).read_text("utf-8").splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            if inside and not set(line) <= set("|-"):
                found.append([cell.strip("| ") for cell in cells])
            inside = inside or line.startswith(header)
        else:
            inside = False
    assert found, f"{page}: no table {header!r}"
    return found


def code(cell: str) -> str:
    """The first code in a cell."""
    match = re.search(r"`([^`]*)`", cell)
    assert match is not None, cell
    return match[1]


def test_parameters() -> None:
    table = rows(_PARAMETERS, "| parameter | default | limits |")
    table += rows(_PARAMETERS, "| parameter | default | meaning |")
    told = {code(name): code(default) for name, default, *_ in table}
    known = {**_defaults(guc.Parameters), **_defaults(guc.SparkParameters)}
    assert told == known


_PARAMETERS = "docs/parameters.md"


def _defaults(kind: type) -> dict[str, str]:
    known = (field for field in dataclasses.fields(kind) if "kind" in field.metadata)
    return {field.name: guc.shown_default(field) for field in known}


def test_what_a_reload_changes() -> None:
    text = (ROOT / _PARAMETERS).read_text("utf-8")
    told = re.search(r"needs a restart: (.*?)\.\n\n", text, re.DOTALL)
    assert told is not None
    names = set(re.findall(r"`([a-z_]+)`", told[1]))
    assert names == _defaults(guc.Parameters).keys() - guc.RELOADED


def test_limits_of_parameters() -> None:
    table = rows(_PARAMETERS, "| parameter | default | limits |")
    told = {code(name): limits for name, _, limits, _ in table}
    for field in dataclasses.fields(guc.Parameters):
        kind = field.metadata.get("kind")
        wanted = ""
        if isinstance(kind, Integer | Real):
            top = "" if kind.maximum == INT_MAX else f" to {kind.maximum}"
            unit = f" {kind.unit}" if isinstance(kind, Integer) and kind.unit else ""
            wanted = f"from {kind.minimum}{top}{unit}"
        assert told.get(field.name, "") == wanted, field.name


def test_environment_variables() -> None:
    told = {code(name) for name, _ in rows(_PARAMETERS, "| variable |")}
    found = set(re.findall(r"\bPENSTOCK_[A-Z_]+\b", _SOURCES)) | {"DEFAULT_ARTIFACT_REPOSITORY"}
    assert told == found - {"PENSTOCK_FAILPOINT"}


def test_commands_and_their_options() -> None:
    group = typer.main.get_command(app)
    commands = group.commands  # type: ignore[attr-defined]
    told = {code(name).split()[1] for name, _ in rows("docs/cli.md", "| command | does |")}
    assert told == set(commands)
    listed = {
        (code(command), option)
        for command, options, _ in rows("docs/cli.md", "| command | option |")
        for option in re.findall(r"`([^`]*)`", options)
    }
    known = {
        (name, option)
        for name, command in commands.items()
        for parameter in command.params
        if parameter.param_type_name == "option"
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option != "--help"
    }
    assert listed == known


def test_what_verify_prints() -> None:
    difference = TableDifference(1, 0, {"missing": 1}, True, (RowDifference("missing", ()),))
    found = Verification("s", Lsn(1), (VerifiedTable("t", None, difference),))
    (table,) = verification_json(found)["tables"]
    listed = [
        key
        for keys, _ in rows("docs/operations.md", "| key | meaning |")
        for key in re.findall(r"`([^`]*)`", keys)
    ]
    assert listed == list(table)


def test_subscription_options() -> None:
    told = {code(n): code(d) for n, d, _ in rows("docs/sql.md", "| option | default |") if "`" in d}
    parsed = subscriptioncmds.SubOpts()
    for name, default in told.items():
        assert str(getattr(parsed, name)).lower() == default, name
    named = {code(name) for name, _, _ in rows("docs/sql.md", "| option | default |")}
    assert named == subscriptioncmds.CREATE
    changed = {
        "slot_name",
        "binary",
        "streaming",
        "two_phase",
        "on_table_error",
        "schema_change",
        "unsent_changes",
        "history",
        "messages",
        "metadata_columns",
        "conflict_resolution",
        "out_of_range",
        "soft_delete",
        "partition_by",
        "cluster_by",
        "jsonb_as",
        "verify_interval",
        "verify_rate",
        "copy_target",
        "disable_on_error",
        "synchronous_commit",
        "origin",
        "failover",
        "password_required",
        "run_as_owner",
        "system_identifier",
    }
    assert changed == subscriptioncmds.SET


def test_relations_to_select_from() -> None:
    known = catalogs(18)
    for name, told in rows("docs/sql.md", "| relation |"):
        columns = {column for column, _ in known[code(name)]}
        assert not told.startswith("ours") or columns == set(re.findall(r"`([^`]*)`", told)), name


def test_types(database: Database) -> None:
    for number, (postgres, delta, arrow, _) in enumerate(rows("docs/types.md", "| PostgreSQL |")):
        database.execute(f"CREATE TABLE t{number} (c {code(postgres)})")
        ((oid, typmod),) = database.rows(
            "SELECT atttypid::int, atttypmod FROM pg_attribute"
            f" WHERE attrelid = 't{number}'::regclass AND attname = 'c'"
        )
        found = arrow_type(oid, typmod)
        assert _arrow_text(found) == code(arrow), postgres
        assert _spark_text(delta_type(found)) == code(delta), postgres


def _arrow_text(found: pa.DataType) -> str:
    return str(found).replace("element:", "item:")


def _spark_text(found: object) -> str:
    if isinstance(found, dict):
        return f"array<{_spark_text(found['elementType'])}>"
    return _SPARK_NAMES.get(str(found), str(found))


def test_names() -> None:
    told = {
        code(name): code(delta) for name, delta in rows("docs/names.md", "| at the publisher | in")
    }
    assert column_names(told) == told
    for name, folder in rows("docs/names.md", "| at the publisher | folder"):
        assert folder_name(code(name)) == code(folder)


def test_cuts_table() -> None:
    told = [(code(name), kind) for name, kind, _ in rows("docs/reading-at-a-cut.md", "| column |")]
    known = [(f.name, _spark_text(delta_type(f.type))) for f in SCHEMA]
    assert told == known


def test_status_fields() -> None:
    told = [code(name) for name, _ in rows("docs/operations.md", "| field |")]
    known = [name for kind in (SubscriptionStatus, TableStatus) for name in json_fields(kind)]
    assert sorted(told) == sorted(known)


def test_metrics() -> None:
    told = {
        (code(name), tuple(re.findall(r"`([^`]*)`", labels)))
        for name, labels, _ in rows("docs/operations.md", "| metric |")
    }
    slot = SlotReport("s", True, False, False, 1, 1, 1, 1.0, 1.0, 1, 1)
    sender = SenderReport("s", "a", 1, 1, 1, 1.0)
    numbers = (
        "received_lsn cut_lsn publisher_lsn lag_bytes lag_seconds cut_age_seconds "
        "publisher_age_seconds retained_wal_bytes"
    )
    table = TableStatus("public.t", state="r", version=1, verified_seconds=1.0)
    subscription = SubscriptionStatus(
        1,
        None,
        "x",
        1.0,
        name="u",
        enabled=True,
        publications=(),
        slot_name=None,
        wal_status="reserved",
        tables=(table,),
        **dict.fromkeys(re.findall(r"\w+", numbers), 1),  # type: ignore[arg-type]
    )
    report = NodeReport("1", (subscription,), SequencerReport(1, 1, 1), (slot,), (sender,))
    families = NodeCollector(lambda: report).collect()
    samples = [sample for family in families for sample in family.samples]
    assert told == {(sample.name, tuple(sample.labels)) for sample in samples}


def test_tries() -> None:
    for names, tries in rows("docs/operations.md", "| error | tries |"):
        for name in re.findall(r"`([A-Z]\w+)`", names):
            error = getattr(errors, name)("test")
            if "the server starts" in names:
                error.sqlstate = "57P03"
            if "any other error" in names:
                error.sqlstate = "42704"
            if "a file is gone" in names:
                error.sqlstate = "58P01"
            often = tries.partition(";")[0]
            told = None if often == "for ever" else int(often)
            assert max_tries(error) == told, names
        if "unexpected" in names:
            assert max_tries(RuntimeError()) == int(tries)


# Messages of the server itself (elog in the file named), which no file of ours holds.
_POSTGRES = """
    password authentication failed                     auth.c
    no pg_hba.conf entry                               auth.c
    all replication slots are in use                   slot.c
    replication slot "%s" already exists               slot.c
    replication slot "%s" is active for PID            slot.c
    permission denied for table                        aclchk.c
    cannot update table "%s" because it does not have a replica identity and publishes updates
    No space left on device                            strerror(ENOSPC)
"""


def test_messages_of_the_guide() -> None:
    known = re.sub(r"\{[^{}]*\}|%s", "*", _SOURCES + _POSTGRES).replace('"*"', "*")
    for messages, *_ in rows("docs/follow-your-database.md", "| message |"):
        for message in re.findall(r"`([^`]*)`", messages):
            pattern = re.sub(r'"(\.\.\.|shop)"', "*", message)
            assert pattern in known, message


def test_links() -> None:
    broken = [f"{page}: {link}" for page, link in _links() if not _leads_somewhere(page, link)]
    assert not broken


def _links() -> Iterator[tuple[Path, str]]:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "bench").glob("*.md")]
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if not link.startswith(("http://", "https://", "mailto:")):
                yield page, link


def _leads_somewhere(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = (page.parent / name) if name else page
    if not target.exists():
        return False
    return not anchor or anchor in _anchors(target)


def _anchors(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
