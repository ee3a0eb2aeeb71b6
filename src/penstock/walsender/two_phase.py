"""PREPARE TRANSACTION, COMMIT PREPARED and ROLLBACK PREPARED as records of the log (twophase.c).

One write of the catalog marks a transaction as prepared and puts its PREPARE into the node's log.
Another write marks its end and logs it. So after a crash the catalog has mark and record, or
neither.

The commits to a prepared transaction's tables are logged as COMMIT PREPARED if they are one
transaction with nothing else in it. Otherwise the log gets ROLLBACK PREPARED, and the commits as
ordinary transactions: a table was lost, a subscription maintains one now, or commits of others
cannot be separated. So a reader that has the PREPARE loses nothing and gets nothing twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from penstock.catalog import (
    BlockCommit,
    BlockMessage,
    CatalogTransaction,
    Member,
    PreparedBlock,
    PreparedState,
    PrepareRecord,
    TwoPhaseKind,
    TwoPhaseRecord,
)
from penstock.lakehouse.change import StagedChange
from penstock.walsender.commit_order import PendingTransaction

_BYTES_OF_AN_ACTION = 64
"""Bytes of WAL for each file, as ``commits`` counts them."""


def put_prepare(
    t: CatalogTransaction,
    block: PreparedBlock,
    changes: Sequence[StagedChange],
    versions: Sequence[int],
    time: int,
) -> None:
    """Put PREPARE TRANSACTION into the log. ``versions``: the tables' versions against which the
    changes were checked."""
    members = [
        Member(change.relation, change.uri, version, version, change.table_id)
        for change, version in zip(changes, versions, strict=True)
    ]
    files = [file for change in changes for file in change.added.values()]
    touched = len(files) + sum(len(change.gone) for change in changes)
    record = t.transactions.append(
        members,
        commit_time=time,
        size=_BYTES_OF_AN_ACTION * touched + sum(file.size for file in files),
        xid=block.xid,
        two_phase=TwoPhaseRecord(TwoPhaseKind.PREPARE, block.gid),
        content=block.content.encode(),
        messages=t.block_messages.of(block.id),
    )
    t.prepared_blocks.told(block.id, PrepareRecord(record.commit, record.end, time))


def put_rollback(t: CatalogTransaction, block: PreparedBlock, time: int) -> None:
    """Put ROLLBACK PREPARED into the log, if it has the PREPARE. The block's row stays in the
    catalog, since its files are kept until every slot is beyond it."""
    if block.prepare is not None:
        _put_end(t, TwoPhaseKind.ROLLBACK_PREPARED, block, time)


def put_commit_of_nothing(t: CatalogTransaction, block: PreparedBlock, time: int) -> None:
    """Put a COMMIT PREPARED without changes into the log, since the tables are gone."""
    _put_end(t, TwoPhaseKind.COMMIT_PREPARED, block, time)
    t.prepared_blocks.delete(block.id)


def _put_end(t: CatalogTransaction, kind: TwoPhaseKind, block: PreparedBlock, time: int) -> None:
    record = TwoPhaseRecord(kind, block.gid, block.prepare)
    messages: Sequence[BlockMessage] = ()
    if kind is TwoPhaseKind.COMMIT_PREPARED:
        own = {block.id} if block.commit_block is None else {block.commit_block}
        messages = t.block_messages.take(own)
    t.transactions.append(
        [], commit_time=time, size=0, xid=block.xid, two_phase=record, messages=messages
    )


def put_without_rows(t: CatalogTransaction, block: BlockCommit, time: int) -> None:
    """Put a block into the log that has emitted messages and changed no row: no table's log has
    it."""
    prepared = None if block.prepared is None else t.prepared_blocks.get(block.prepared)
    if prepared is not None and prepared.prepare is not None:
        put_commit_of_nothing(t, prepared, time)
        return
    _put_messages(t, block.block, time, None if prepared is None else prepared.xid)


def _put_messages(t: CatalogTransaction, block: str, time: int, xid: int | None = None) -> None:
    messages = t.block_messages.take({block})
    if messages:
        t.transactions.append([], commit_time=time, size=0, xid=xid, messages=messages)


def waiting_for_commits(t: CatalogTransaction) -> frozenset[str]:
    """Return ids of prepared transactions, and of blocks with messages, that are committed but not
    in the log yet."""
    return frozenset({*(prepared.id for prepared in _committed(t)), *_messages_of_committed(t)})


def put_without_commits(
    t: CatalogTransaction, waiting: Collection[str], newest: Mapping[int, int], time: int
) -> None:
    """Put ``waiting`` transactions into the node's log if their commits cannot be found any more:
    the log has all remaining commits of their tables. ``newest`` has the newest versions of
    readable tables, by oid; look them up after ``waiting``."""
    at = t.transactions.sequenced()

    def over(relations: Iterable[int]) -> bool:
        there = [oid for oid in relations if oid in at]
        return all(oid in newest and at[oid].version >= newest[oid] for oid in there)

    for prepared in _committed(t):
        told = prepared.prepare is not None
        if told and prepared.id in waiting and over(prepared.relations):
            put_commit_of_nothing(t, prepared, time)
    for block, relations in _messages_of_committed(t).items():
        if block in waiting and over(at if relations is None else relations):
            _put_messages(t, block, time)


def _committed(t: CatalogTransaction) -> list[PreparedBlock]:
    return [b for b in t.prepared_blocks.all() if b.state is PreparedState.COMMITTED]


def _messages_of_committed(t: CatalogTransaction) -> dict[str, tuple[int, ...] | None]:
    """Return the tables of each committed block with messages, None if they are not known. Blocks
    whose commits are under way and prepared transactions are left out."""
    found = t.block_messages.relations()
    if not found:
        return {}
    prepared = t.prepared_blocks.all()
    others = {block.block for block in t.block_commits.all()}
    others |= {block.id for block in prepared}
    others |= {block.commit_block for block in prepared if block.commit_block is not None}
    return {block: relations for block, relations in found.items() if block not in others}


def note_commit(
    t: CatalogTransaction, commit: BlockCommit, messages: Sequence[BlockMessage] = ()
) -> None:
    """Record that a block's commits are under way, so that ``committed_by`` knows their transaction
    even if it finds some of them before all exist."""
    t.block_commits.put(commit)
    if messages:
        t.block_messages.put(commit.block, messages, commit.relations)
    if commit.prepared is not None:
        t.prepared_blocks.begin_commit(commit.prepared, commit.block)


def committed_by(
    t: CatalogTransaction, item: PendingTransaction, time: int
) -> PreparedBlock | None:
    """Return the prepared transaction whose COMMIT PREPARED is ``item``, None if there is none.
    Other prepared transactions with commits in ``item`` get their ROLLBACK PREPARED before it."""
    for block_id in sorted(item.blocks):
        block = t.prepared_blocks.committed_by(block_id)
        if block is None or block.prepare is None:
            continue
        if item.only_block and {m.relation for m in item.members} == set(block.relations):
            return block
        put_rollback(t, block, time)
        end_in_log(t, block)
    return None


def end_in_log(t: CatalogTransaction, block: PreparedBlock) -> None:
    """Note that the node's log has the end of a prepared transaction."""
    if block.state is PreparedState.COMMITTED:
        t.prepared_blocks.delete(block.id)
    else:  # COMMIT PREPARED is still under way
        t.prepared_blocks.told(block.id, None)


def commit_record(block: PreparedBlock) -> TwoPhaseRecord:
    """Return the COMMIT PREPARED record of a block's commits."""
    return TwoPhaseRecord(TwoPhaseKind.COMMIT_PREPARED, block.gid, block.prepare)
