"""The section of the pipeline file for a destination that a user has written: `type: python`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from penstock.config.destinations import StreamSection, StreamStart
from penstock.config.section import misplaced
from penstock.config.units import Duration
from penstock.config.values import Name
from penstock.destinations.python.destination import Destination
from penstock.render.format import EventFormat

GIVEN = "given by the program"  # where a class would be named


class PythonDestination(StreamSection):
    """A class of the user's. `config` are its arguments. With one shard it is one sequence, which nobody divides."""

    takes_avro: ClassVar[bool] = False
    takes_headers: ClassVar[bool] = False
    not_yet: ClassVar[tuple[str, ...]] = tuple(key for key in StreamSection.not_yet if key != "timeout")

    name: Name = "python"
    type: Literal["python"]
    found_at: Annotated[str | None, Field(alias="class", pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] = None
    config: Annotated[dict[str, Any], Field(repr=False)] = Field(default_factory=dict)
    runs_on: Annotated[Literal["driver", "executors"], Field(alias="where")] = "driver"
    most_events: Annotated[int, Field(alias="batch", ge=1, le=100_000)] = 1_000
    timeout: Annotated[Duration, Field(gt=0)] = 30.0
    start: StreamStart = "copy"

    _folder: Path = PrivateAttr(Path())
    _made: Destination | None = PrivateAttr(None)

    @property
    def where(self) -> str:
        return f"class {self.found_at or GIVEN}"

    @property
    def on_driver(self) -> bool:
        """Whether its object lives in the driver, and its tasks with it."""
        return self.runs_on == "driver"

    @property
    def module_folder(self) -> str:
        """Where its module may lie: the pipeline file's folder."""
        return str(self._folder)

    @property
    def made(self) -> Destination | None:
        """The object that the program has given in place of a class."""
        return self._made

    @property
    def record_format(self) -> EventFormat:
        return replace(super().record_format, split_moves=self.shards > 1)

    def holding(self, made: Destination) -> PythonDestination:
        """Return the section with an object in place of a class."""
        section = self.model_copy()
        section._made, section._folder = made, self._folder
        return section

    @model_validator(mode="after")
    def _as_a_class_wants_it(self, info: ValidationInfo) -> PythonDestination:
        self._folder = (info.context or {}).get("folder", Path.cwd())
        if self.envelope.type != "native":
            raise misplaced("envelope", "must be `native`: a class gets events as objects")
        if self.shards > 1 and self.publishes_rows:
            raise misplaced(
                "shards",
                "must be 1 where rows are copied: `begin_copy` of one shard would remove the rows of another; "
                "or set `start: log`",
            )
        if self.key is not None:
            raise misplaced("key", "must be left out: a class gets the key of each event")
        return self
