"""Which files of a table compaction rewrites: small ones by their sizes, large ones by dead rows.

In: the files of a version. Out: those that are due, a choice at a time. Small files are told apart
by the class of their size, each eight times the one before. A class that has become full is merged
together with what is smaller, so the result is of a higher class: a row is rewritten once a class,
however many commits there are, and a table keeps less than ``small_files`` small ones. Merging all
small files whenever there are many would write the largest of them again and again. How files are
rewritten is ``compact``'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.lakehouse.batches import BATCH_BYTES
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.files import TARGET_FILE_BYTES

_CLASSES: Final = 4
_WIDTH: Final = 8
"""Times the size of the class below. The smallest files cost what their opening does."""

_Partition = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class CompactOptions:
    """When a table is compacted, and how much of it at once.

    ``small_files``: so many files of less than ``small_bytes`` of live rows a table has at most,
    not counting those that are alone in their partition. ``dead_ratio``: files of any larger size
    are rewritten when this part of their rows is dead. ``max_bytes``: of files in one run.
    ``batch_bytes``: Arrow data that a task reads at a time. ``own``: an app id; files of which it
    is known that another one wrote them stay as they are. None: nobody looks.
    """

    small_files: int = 32
    small_bytes: int = 16 << 20
    dead_ratio: float = 0.3
    target_file_bytes: int = TARGET_FILE_BYTES
    max_bytes: int = 128 << 20
    batch_bytes: int = BATCH_BYTES
    own: str | None = None

    @property
    def full(self) -> int:
        """Files of a class that are merged."""
        return max(2, self.small_files // _CLASSES)


def files_to_rewrite(files: Iterable[DataFile], options: CompactOptions) -> list[DataFile]:
    """The files that are due, in the order of the table, up to ``max_bytes`` but at least one; of
    small ones two.

    Dead rows do not make a small file due: it would be rewritten with every batch that touches it.
    Nor is one that is alone in its partition: it would stay what it is.
    """
    small: list[tuple[int, DataFile]] = []
    dying: list[DataFile] = []
    for file in files:
        if (size := live_bytes(file)) < options.small_bytes:
            small.append((_class(size, options), file))
        elif file.deleted >= options.dead_ratio * file.rows:
            dying.append(file)
    merged = _merged(_full_class(small, options), options)
    return merged or _dying(dying, options)


def gain(chosen: Sequence[DataFile]) -> float:
    """Files that there are less afterwards, or dead rows' bytes, for what is read and written."""
    size = sum(file.size for file in chosen)
    dead = size - sum(map(live_bytes, chosen))
    fewer = len(chosen) - len({partition(file) for file in chosen})
    return (fewer + dead / TARGET_FILE_BYTES) / (size + (1 << 20))


def partition(file: DataFile) -> _Partition:
    """Which files may become one."""
    return tuple((file.partition_values or {}).items())


def live_bytes(file: DataFile) -> float:
    """About what its live rows take in a file."""
    return file.size * file.live_rows / max(file.rows, 1)


def _class(size: float, options: CompactOptions) -> int:
    number, limit = _CLASSES - 1, options.small_bytes / _WIDTH
    while number and size < limit:
        number, limit = number - 1, limit / _WIDTH
    return number


def _full_class(
    small: Sequence[tuple[int, DataFile]], options: CompactOptions
) -> list[list[DataFile]]:
    """By partition, the files of the lowest class in which there are too many, with smaller ones.

    Those count that others of their class and partition stand beside: so many there are less.
    """
    beside: dict[tuple[int, _Partition], int] = {}
    for number, file in small:
        key = number, partition(file)
        beside[key] = beside.get(key, -1) + 1
    less = [0] * _CLASSES
    for (number, _), count in beside.items():
        less[number] += count
    full = next((n for n in range(_CLASSES) if less[n] >= options.full - 1), None)
    mates: dict[_Partition, list[DataFile]] = {}
    for number, file in small:
        if full is not None and number <= full and beside.get((full, partition(file)), 0):
            mates.setdefault(partition(file), []).append(file)
    return list(mates.values())


def _merged(groups: Iterable[Sequence[DataFile]], options: CompactOptions) -> list[DataFile]:
    """Two of a partition at least."""
    chosen: list[DataFile] = []
    size = 0
    for mates in groups:
        taken: list[DataFile] = []
        for file in mates:
            if len(chosen) + len(taken) > 1 and size + file.size > options.max_bytes:
                break
            taken.append(file)
            size += file.size
        chosen += taken if len(taken) > 1 else []
    return chosen


def _dying(files: Iterable[DataFile], options: CompactOptions) -> list[DataFile]:
    chosen: list[DataFile] = []
    size = 0
    for file in sorted(files, key=_by_partition):
        if chosen and size + file.size > options.max_bytes:
            break
        chosen.append(file)
        size += file.size
    return chosen


def _by_partition(file: DataFile) -> list[tuple[str, str]]:
    return [(name, value or "") for name, value in partition(file)]
