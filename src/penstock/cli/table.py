"""Result rows as psql's aligned format prints them."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns under their centred names, NULL as nothing, and the count of rows."""
    cells = [[_text(value) for value in row] for row in rows]
    widths = [
        max(len(name), *(len(row[i]) for row in cells)) if cells else len(name)
        for i, name in enumerate(columns)
    ]
    lines = [
        "|".join(f" {name.center(width)} " for name, width in zip(columns, widths, strict=True)),
        "+".join("-" * (width + 2) for width in widths),
    ]
    lines += [
        "|".join(f" {cell.ljust(width)} " for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    lines.append(f"({len(rows)} row{'' if len(rows) == 1 else 's'})")
    return "\n".join(lines)


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "t" if value else "f"
        case list() | tuple():
            return "{" + ",".join(_text(item) for item in value) + "}"
        case _:
            return str(value)
