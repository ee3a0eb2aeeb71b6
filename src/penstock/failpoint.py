"""Failpoints: places to kill or stop the process in fault tests (PostgreSQL's injection points).

The environment variable ``PENSTOCK_FAILPOINT=name[:n[:stop]]`` is read once at import. The n-th
pass (default 1) sends SIGKILL to ourselves, or with ``stop`` once SIGSTOP to our process group,
Spark included; SIGCONT continues it. Without the variable, a failpoint costs one comparison. Names
stand here, so that tests can iterate over them.
"""

from __future__ import annotations

import os
import signal
from typing import Final

AFTER_RECEIVE: Final = "after-receive"
BETWEEN_COMMITS: Final = "between-commits"
BEFORE_CUT: Final = "before-cut"
AFTER_CUT: Final = "after-cut"
BEFORE_COMMITS: Final = "before-commits"
"""All tables of a batch are loaded; none of them has the batch."""
AFTER_REVERSAL: Final = "after-reversal"
"""One table is back at the last cut, after a batch that not all tables could get."""
INSIDE_COPY: Final = "inside-copy"
AFTER_COPY_COMMIT: Final = "after-copy-commit"
BEFORE_SEQUENCE: Final = "before-sequence"
AFTER_SEQUENCE: Final = "after-sequence"
INSIDE_TRANSACTION: Final = "inside-transaction"
AFTER_COMMIT_SENT: Final = "after-commit-sent"
AFTER_CONFIRM: Final = "after-confirm"
AFTER_PREPARE: Final = "after-prepare"
"""A prepared transaction is durable; no later change has been taken."""
AFTER_CONFLICTS: Final = "after-conflicts"
"""The conflicts of a batch are in their table; the batch is not committed."""
AFTER_HISTORY: Final = "after-history"
"""The histories of a batch's tables have the batch; the tables do not."""
AFTER_MESSAGES: Final = "after-messages"
"""The messages of a batch are in their table; the batch is not committed."""
AFTER_WRITING_AHEAD: Final = "after-writing-ahead"
"""Rows of an open transaction are in files that no commit names."""
AFTER_EMIT: Final = "after-emit"
"""A message is in the node's log; its sender has no answer yet."""
AFTER_SLOT_DROP: Final = "after-slot-drop"
"""A slot is dropped; the client has no answer yet."""
AFTER_SLOT_CREATE: Final = "after-slot-create"
"""A slot is durable; the client has no answer yet."""
AFTER_SLOT_READ: Final = "after-slot-read"
"""A statement has read a slot; the last of its rows are not sent."""
AFTER_SLOT_ANSWER: Final = "after-slot-answer"
"""All rows that a statement has read from a slot are sent; the client waits for ReadyForQuery."""
AFTER_SLOT_SAVED: Final = "after-slot-saved"
"""The position up to which statements have read the slot is durable."""
AFTER_BLOCK_INTENT: Final = "after-block-intent"
"""The intent of a transaction block is written; none of its tables has its commit."""
AFTER_BLOCK_TABLE: Final = "after-block-table"
"""A table that a transaction block has made has its log, without rows; no catalog has it."""
BETWEEN_BLOCK_COMMITS: Final = "between-block-commits"
"""One table of a transaction block has its commit."""
AFTER_BLOCK_COMMITS: Final = "after-block-commits"
"""All tables have their commit; the node's log does not have it, and the intent still exists."""
AFTER_BLOCK_UNDONE: Final = "after-block-undone"
"""A transaction block's commit of one table was taken back."""
AFTER_PREPARE_INTENT: Final = "after-prepare-intent"
"""PREPARE TRANSACTION has written its row, but has not checked the block for conflicts yet."""
AFTER_BLOCK_PREPARED: Final = "after-block-prepared"
"""A transaction block is prepared; its client has no answer."""
AFTER_ROLLBACK_PREPARED: Final = "after-rollback-prepared"
"""A prepared transaction is rolled back; its files still exist."""
BEFORE_COMPACTION: Final = "before-compaction"
"""A table's files are rewritten; no commit names the new files."""
AFTER_COMPACTION: Final = "after-compaction"
"""The table has its rows in new files, and no cut names that version."""

INSIDE_VERIFICATION: Final = "inside-verification"
"""A range of a table is compared in the background; its result is not written yet."""

BLOCK_NAMES: Final = (AFTER_BLOCK_INTENT, BETWEEN_BLOCK_COMMITS, AFTER_BLOCK_COMMITS)
"""Failpoints that every COMMIT of a block over several tables passes."""
BLOCK_TABLE_NAMES: Final = (AFTER_BLOCK_INTENT, AFTER_BLOCK_TABLE, *BLOCK_NAMES[1:])
"""Failpoints that every COMMIT passes if its block has made a table and put rows into it."""
NAMES: Final = (
    AFTER_RECEIVE,
    BETWEEN_COMMITS,
    BEFORE_CUT,
    AFTER_CUT,
    INSIDE_COPY,
    AFTER_COPY_COMMIT,
    BEFORE_COMPACTION,
    AFTER_COMPACTION,
)
"""Failpoints of a node that subscribes."""
PUBLISHING_NAMES: Final = (
    BEFORE_SEQUENCE,
    AFTER_SEQUENCE,
    INSIDE_TRANSACTION,
    AFTER_COMMIT_SENT,
    AFTER_CONFIRM,
)
"""Failpoints of a node that publishes."""

_armed, _count, _action = [*os.environ.get("PENSTOCK_FAILPOINT", "").split(":"), "", ""][:3]
_left = int(_count or 1)


def failpoint(name: str) -> None:
    """Die or stop here if this failpoint is armed and this is its n-th pass."""
    global _armed, _left
    if name != _armed:
        return
    _left -= 1
    if _left > 0:
        return
    if _action == "stop":
        _armed = ""
        os.killpg(os.getpgrp(), signal.SIGSTOP)
    else:
        os.kill(os.getpid(), signal.SIGKILL)
