"""Subjects: what the template gives, made legal; with several shards the number of the shard behind the fixed words.

shop.public.orders        one shard; the stream takes shop.>
shop.3.public.orders      shard 3 of several; its stream takes shop.3.>
shop._penstock            messages that move the shard's place alone (`publisher.py`)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OWN = "_penstock"
_ILLEGAL = re.compile(r"[\x00-\x20*>%\x7f]")


@dataclass(frozen=True)
class Subjects:
    """The subjects of one shard.

    `prefix` is the part of the template before its first variable, in whole words; `number` is the shard's, None when
    there is only one.
    """

    prefix: str
    number: int | None = None

    @property
    def root(self) -> str:
        return self.prefix if self.number is None else f"{self.prefix}.{self.number}"

    @property
    def all(self) -> str:
        """What the shard's stream takes."""
        return f"{self.root}.>"

    @property
    def own(self) -> str:
        """Where messages go that are for penstock alone."""
        return f"{self.root}.{OWN}"

    def of(self, topic: str) -> str:
        """Return the subject of a topic, which begins with the prefix or is put below it."""
        below = topic.removeprefix(f"{self.prefix}.")
        legal = _ILLEGAL.sub(lambda found: f"%{ord(found[0]):02X}", below)
        words = [word or "%" for word in legal.split(".")]  # no word may be empty; a % of its own is not escaped
        return ".".join([self.root, *words])


def fixed_prefix(template: str) -> str:
    """Return the whole words of a template before its first variable, or before its last word; empty without any."""
    return template.partition("${")[0].rpartition(".")[0]


def takes(pattern: str, subject: str) -> bool:
    """Whether a stream with this subject takes everything that another one means; both may have wildcards."""
    wanted, words = pattern.split("."), subject.split(".")
    for number, word in enumerate(wanted):
        if word == ">":
            return len(words) > number
        if number >= len(words) or words[number] == ">" or word not in ("*", words[number]):
            return False
    return len(wanted) == len(words)
