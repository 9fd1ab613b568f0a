"""The section `state` of the pipeline file for a store of a user's own class."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from penstock.config.section import Section


class PythonState(Section):
    """A class with the methods of `penstock.Store`; `config` are its arguments."""

    type: Literal["python"]
    found_at: Annotated[str, Field(alias="class", pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    config: Annotated[dict[str, Any], Field(repr=False)] = Field(default_factory=dict)
