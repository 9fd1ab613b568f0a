"""What a batch changes in one table: rows, deletes, structure and position, put into a strict transaction.

`of` looks at the plan, `fill` puts the change into a transaction, and `settle` carries the driver's knowledge of the
table on when the transaction has been committed, alone (`destination`) or with others (`group_commit`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.destinations.contract import WritePlan, WrittenPart
from penstock.destinations.iceberg.commit import Found, StrictTransaction, carried_on, placed, state_after
from penstock.destinations.iceberg.java import Java
from penstock.destinations.iceberg.lineage import NONE, lineage_property
from penstock.destinations.iceberg.open_table import OpenTable, Standing, moment_property, position_property
from penstock.destinations.iceberg.tables import Tables
from penstock.destinations.lake.file_list import TableState
from penstock.destinations.lake.planning import lake_parts
from penstock.destinations.lake.upsert_plan import LakePart, UpsertPlan
from penstock.model.position import Position, stored_text


@dataclass(frozen=True, kw_only=True)
class BatchChange:
    """`base` is the metadata file that the change is made of, `before` the state under it as the driver knows it.

    `copied` are the properties of a copy that is merged.
    """

    plan: UpsertPlan
    written: Sequence[LakePart]
    truncated: bool
    position: Position
    moment: int | None
    opened: OpenTable
    before: TableState | None
    base: str
    copied: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(
        tables: Tables,
        plan: WritePlan,
        parts: Sequence[WrittenPart],
        *,
        truncated: bool,
        position: Position,
        moment: int | None,
        copied: Mapping[str, str] | None = None,
    ) -> BatchChange:
        """Return the change that these parts make.

        StaleBase if the plan follows a commit that came to something else.
        """
        if not isinstance(plan, UpsertPlan):
            raise TypeError(f"{type(plan).__name__} is not a plan of an Iceberg table")
        opened = tables.known(plan.target, plan.source)
        return BatchChange(
            plan=plan,
            written=[part for part in lake_parts(parts) if not part.empty],
            truncated=truncated,
            position=position,
            moment=moment,
            opened=opened,
            before=opened.state,
            base=opened.base_of(plan),
            copied=copied or {},
        )

    @property
    def what(self) -> str:
        return f"table {self.plan.target}: its commit"

    @property
    def same_columns(self) -> bool:
        """Whether nobody may have changed the table's columns since the plan was made."""
        return self.plan.move is not None

    def fill(self, transaction: StrictTransaction, *, mark: bool) -> None:
        """Put the change into a transaction. `mark`: the catalog compares snapshots and nothing else."""
        if self.plan.move is not None:
            transaction.evolve(self.plan.move, self.plan.source)
        transaction.rescue(self.written)
        if self.truncated:
            transaction.replace_all(self.written)
        elif self.written:
            transaction.row_delta(self.written)
        elif mark:
            transaction.mark()
        transaction.stand(self._properties)

    @property
    def _properties(self) -> dict[str, str]:
        """Where the source stands after the change."""
        standing = {position_property(self.plan.source): stored_text(self.position)}
        if self.moment is not None:
            standing[moment_property(self.plan.source)] = str(self.moment)
        return {**standing, **self.copied}

    def is_ordinary(self, *, mark: bool) -> bool:
        """Return whether the change is no more than rows, positional deletes and properties of a table of one source.

        Java makes such a change ready by itself (`group_operations`). `mark`: as for `fill`.
        """
        more = self.plan.move is not None or self.truncated or any(part.rescued_as for part in self.written)
        return not more and self.opened.slice is None and not (mark and not self.written)

    def described(self) -> str:
        """Describe an ordinary change to Java: what `fill` would put into a strict transaction on `base`."""
        deletes = [part.delete for part in self.written if part.delete is not None]
        return json.dumps(
            {
                "table": str(self.plan.target),
                "base": self.base,
                "local": self.opened.is_local,
                "files": [placed(file, self.opened) for part in self.written for file in part.files],
                "referenced": sorted({path for delete in deletes for path in delete.hits}),
                "properties": self._properties,
                "lineage": lineage_property(self.plan.source),
                "none": NONE,
            }
        )

    def settle(self, java: Java, tables: Tables, *, columns_changed: bool) -> None:
        """Carry on what the driver knows of the table: the change has been committed."""
        tables.follow(self.opened, self.plan.move)
        if self.plan.move is None and columns_changed:
            tables.make_views(self.opened)
        files = [file for part in self.written for file in (part.added if self.truncated else part.files)]
        removed = None if self.truncated else frozenset[str]()
        after = None if self.before is None else carried_on(java, self.opened, self.before, files, removed)
        self._stands(after, columns_changed=columns_changed)

    def settle_ordinary(self, found: Found | None) -> None:
        """Do as `settle` does, for an ordinary change; `found` is what the table says, None if it could not be read."""
        files = [file for part in self.written for file in part.files]
        after = None
        if self.before is not None and found is not None:
            after = state_after(self.opened, self.before, found, files)
        self._stands(after, columns_changed=False)

    def _stands(self, after: TableState | None, *, columns_changed: bool) -> None:
        """Take the table's state after the commit; None: it is read again before the next."""
        opened, plan = self.opened, self.plan
        opened.upkeep.commits_since_expiry += 1
        opened.strayed = ""
        opened.state = after
        opened.look_again, opened.committed = False, None if after is None else (plan.name, after)
        if after is not None and not columns_changed:
            moment = plan.moment if self.moment is None else self.moment
            opened.standing = Standing(after.metadata, self.position, moment, plan.rescued)
