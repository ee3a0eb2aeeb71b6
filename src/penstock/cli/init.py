"""``penstock init DIR``: make a node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.node import Node


def init(
    directory: Annotated[Path, typer.Argument(help="Folder of the new node.")],
    warehouse: Annotated[
        str, typer.Option(help="Folder or URI of the Delta tables (default: inside the node).")
    ] = "",
    state: Annotated[
        str,
        typer.Option(
            help="URL of the state store: postgresql://user@host/database (default: SQLite inside"
            " the node)."
        ),
    ] = "",
) -> None:
    """Make a node: a folder with its parameters (penstock.toml) and its state."""
    node = Node.init(directory, warehouse=warehouse or None, state=state or None)
    typer.echo(f"Node created in {node.folder}; parameters: {node.folder / 'penstock.toml'}")
    typer.echo("")
    typer.echo("Next:")
    typer.echo(
        f"  penstock sql -D {directory} \"CREATE SUBSCRIPTION s CONNECTION '...' PUBLICATION p\""
    )
    typer.echo(f"  penstock start -D {directory}")
