"""What a table format must give, so that the algorithms of this package can write tables of it.

An implementation is picklable and stateless: plans carry it to executors, where it runs without Java and Spark. What a
commit makes of written files is not here; each format's own destination commits. `iceberg.data_files` and
`delta.data_files` implement it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.data_files import PREFIX, DataFile, Rows, WrittenFile


class TableFormat(Hashable, Protocol):
    """Files of one table format.

    A data file is never changed; rows of it end by entries in delete files. What names a delete file is the format's
    own: a path, or a text that says which rows end.
    """

    def write_rows(
        self, folder: str, columns: Sequence[LakeColumn], batches: Iterable[pa.Table], prefix: str = PREFIX
    ) -> WrittenFile:
        """Write one data file of all batches, of which there is at least one. None of it stays if they raise."""
        ...

    def write_deletes(self, folder: str, positions: Mapping[str, Rows], prefix: str = PREFIX) -> WrittenFile:
        """Write one delete file: rows by data file, at least one in all."""
        ...

    def open_file(self, location: str, known: Sequence[LakeColumn] = ()) -> DataFile:
        """Open a data file, whoever wrote it, to read columns by number; `known` are the table's columns now."""
        ...

    def deleted_rows(self, delete_files: Iterable[str], data_files: Sequence[str]) -> dict[str, Rows]:
        """Read the dead rows of some data files, as the delete files say; each once, in order."""
        ...

    def delete_entries(self, location: str) -> Mapping[str, Rows]:
        """Read all entries of a delete file: by data file its dead rows, each once, in order."""
        ...

    def count_deletes(self, location: str) -> dict[str, int]:
        """Count the entries of a delete file by data file."""
        ...

    def concerning(self, delete_files: Sequence[str], data_files: Sequence[str]) -> Sequence[str]:
        """Return the delete files that may have entries for some data files, as far as that is known unread."""
        ...

    def liveness(self, delete_files: Sequence[str]) -> Callable[[str, Rows], npt.NDArray[np.bool_]] | None:
        """Return a function that says which of some rows of a data file are alive.

        None where a key's row is found by the age of its file, and a dead one may be found as well.
        """
        ...
