"""SQL text in, frozen statements out (parser.c, gram.y). The only importer of sqlglot.

In: what a user wrote. Out: ``Statement`` values, or PostgreSQL's syntax error. Nothing is looked up
and nothing is executed here: options are kept as written, names are only folded. What a statement
means is left to ``penstock.commands`` and to the sessions of the walsender.
"""

from penstock.sql.object_names import RangeVar, RoleKind, RoleSpec
from penstock.sql.parser import parse, parse_script
from penstock.sql.partition_bound import Limit, PartitionBound, Strategy, parse_partition_bound
from penstock.sql.publication_statements import (
    AlterPublicationObjects,
    AlterPublicationOptions,
    AlterPublicationOwner,
    CreatePublication,
    DropPublication,
    PublicationAction,
    PublicationObject,
    PublicationSchema,
    PublicationTable,
    RenamePublication,
)
from penstock.sql.role_statements import (
    AlterRole,
    CreateRole,
    DropRole,
    GrantSelect,
    RenameRole,
    RoleOption,
)
from penstock.sql.session_statements import (
    Copy,
    Deallocate,
    Discard,
    Query,
    ResetVariable,
    SetTransaction,
    SetTransactionSnapshot,
    SetVariable,
    ShowVariable,
    Transaction,
    TransactionKind,
    TransactionModes,
    Truncate,
)
from penstock.sql.statements import (
    AlterSubscriptionConnection,
    AlterSubscriptionEnabled,
    AlterSubscriptionRefresh,
    AlterSubscriptionSet,
    CreateSubscription,
    DefElem,
    DropSubscription,
    Select,
    Statement,
)
from penstock.sql.table_statements import (
    AddColumn,
    AddPrimaryKey,
    AlterTable,
    AlterTableCommand,
    AttachPartition,
    ChangeOwner,
    ColumnDef,
    CreateSchema,
    CreateTable,
    DetachPartition,
    DropSchema,
    DropTable,
    PartitionSpec,
    SetReplicaIdentity,
)
from penstock.sql.type_grammar import TypeName

__all__ = [
    "Limit",
    "PartitionBound",
    "RangeVar",
    "RoleKind",
    "RoleSpec",
    "Strategy",
    "TypeName",
    "parse",
    "parse_partition_bound",
    "parse_script",
]
