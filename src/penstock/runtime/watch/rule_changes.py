"""What it means that the file says something else of a table than when its rows were made.

| what changed                            | clone                | append, history, events          |
|-----------------------------------------|----------------------|----------------------------------|
| `where`, `columns`, `set`, `types`, salt | copied again, by itself | Errored: put back, or drop    |
| mode clone to append                    |                      | copied again, by itself          |
| mode append to clone                    | Errored: a copy would remove what it keeps | |

Tables whose mode is another kind of table altogether are refused by the destination (OtherLayout). What append, history
and events keep is nowhere else, so it is never replaced without the operator's word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import OtherLayout, RuleChanged
from penstock.fold.rule import changes, mode_of, newly_hidden
from penstock.model.feed import Feed, Mode


@dataclass(frozen=True)
class RuleChange:
    """`why` is for people.

    `loses`: a new copy would remove rows that only the destination has. `hidden`: columns that are masked or dropped
    from now on, and were not.
    """

    why: str
    loses: bool
    hidden: tuple[str, ...]


def compared(feed: Feed, before: str | None, after: str, retyped: Sequence[str]) -> RuleChange | None:
    """None when the table's rows are what the file asks for. `before` None: the table does not say."""
    if before is None:
        return RuleChange("; ".join(retyped), feed.mode is not Mode.CLONE, ()) if retyped else None
    told, was = [*changes(before, after), *retyped], mode_of(before)
    loses = bool(told) and feed.mode is not Mode.CLONE
    if was is not feed.mode:
        told.insert(0, f"its mode changed from {was} to {feed.mode}")
        loses = loses or was is not Mode.CLONE
    return RuleChange("; ".join(told), loses, tuple(newly_hidden(before, after))) if told else None


def refusal(feed: Feed, file: Path, change: RuleChange) -> RuleChanged:
    return RuleChanged(
        f"table {feed.name}: {change.why}; a new copy would remove rows that only the destination has",
        f"Set it back in {file}; or give up what {feed.target} keeps: penstock drop {file} {feed.name} --yes, "
        "and it is copied again",
    )


def other_layout(feed: Feed, file: Path, error: OtherLayout) -> OtherLayout:
    """With the commands for this table."""
    return OtherLayout(
        error.what,
        f"Set it back in {file}; or give the new mode another `target`; or give up what {feed.target} holds: "
        f"penstock drop {file} {feed.name} --yes, and it is copied again",
    )


def hidden_remark(feed: Feed, catalog: str, columns: Sequence[str]) -> str:
    """Say what the operator must know of values that are not to be read any more."""
    several = len(columns) > 1
    return (
        f"table {feed.name}: column{'s' if several else ''} {', '.join(columns)} can be read as before until the "
        f"table's new copy is committed, and in its older snapshots until they expire. When it is Ready: "
        f"CALL {catalog}.system.expire_snapshots(table => '{feed.target}', older_than => now(), retain_last => 1)"
    )
