"""Dead letters in the state store in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from penstock.model.dead_letter import AskedLetter, DeadLetter, KeptLetter, LetterCount
from penstock.model.table import TableId
from penstock.state.memory_part import Key, MemoryPart


class MemoryDeadLetters(MemoryPart):
    def __init__(self, ids: Iterator[int] | None = None) -> None:
        super().__init__(ids)
        self._letters: dict[int, KeptLetter] = {}
        self._letter_requests: dict[int, tuple[int, datetime]] = {}  # letter and time, by request
        self._letters_dropped: Counter[Key] = Counter()

    def keep_letters(
        self, destination: str, letters: Sequence[DeadLetter], *, most: int, drop_oldest: bool = False
    ) -> bool:
        with self._lock:
            there = {_place(one.letter): one for one in self.letters(destination)}
            fresh = [one for one in letters if _place(one) not in there]
            excess = len(there) + len(fresh) - most
            if fresh and excess > 0 and not drop_oldest:
                return False
            for one in letters:
                known = there.get(_place(one))
                if known is not None:
                    again = replace(known.letter, code=one.code, reason=one.reason)
                    self._letters[known.id] = replace(known, letter=again)
                    continue
                now, number = datetime.now(UTC), next(self._ids)
                self._letters[number] = KeptLetter(number, destination, now, now, 1, False, one)
            if fresh and excess > 0:
                self._drop([one.id for one in self.letters(destination)[:excess]])
            return True

    def letters(self, destination: str) -> list[KeptLetter]:
        with self._lock:
            asked = {letter for letter, _ in self._letter_requests.values()}
            own = [one for one in self._letters.values() if one.destination == destination]
            return [replace(one, asked=one.id in asked) for one in sorted(own, key=lambda one: one.id)]

    def letter_counts(self, destination: str) -> dict[TableId, LetterCount]:
        with self._lock:
            kept = Counter(one.table for one in self.letters(destination))
            gone = {table: number for (name, table), number in self._letters_dropped.items() if name == destination}
        return {table: LetterCount(kept.get(table, 0), gone.get(table, 0)) for table in sorted({*kept, *gone})}

    def release_letters(self, numbers: Collection[int]) -> None:
        with self._lock:
            for number in numbers:
                self._letters.pop(number, None)
            requests = self._letter_requests.items()
            self._letter_requests = {number: asked for number, asked in requests if asked[0] in self._letters}

    def expire_letters(self, destination: str, before: datetime) -> int:
        with self._lock:
            return self._drop([one.id for one in self.letters(destination) if one.at < before])

    def ask_letters(self, numbers: Collection[int]) -> list[int]:
        with self._lock:
            asked = {letter for letter, _ in self._letter_requests.values()}
            fresh = [number for number in sorted(numbers) if number in self._letters and number not in asked]
            self._letter_requests |= {next(self._ids): (number, datetime.now(UTC)) for number in fresh}
            return fresh

    def asked_letters(self, destination: str) -> list[AskedLetter]:
        with self._lock:
            own = {one.id: one for one in self.letters(destination)}
            requests = sorted(self._letter_requests.items())
            return [AskedLetter(request, at, own[letter]) for request, (letter, at) in requests if letter in own]

    def fail_letter(self, number: int, code: str, reason: str) -> None:
        with self._lock:
            known = self._letters.get(number)
            if known is not None:
                again, attempts = replace(known.letter, code=code, reason=reason), known.attempts + 1
                self._letters[number] = replace(known, tried_at=datetime.now(UTC), attempts=attempts, letter=again)
            requests = self._letter_requests.items()
            self._letter_requests = {request: asked for request, asked in requests if asked[0] != number}

    def _drop(self, numbers: Collection[int]) -> int:
        self._letters_dropped.update((self._letters[one].destination, self._letters[one].table) for one in numbers)
        self.release_letters(numbers)
        return len(numbers)

    def _forget(self, key: Key) -> None:
        super()._forget(key)
        self.release_letters([one.id for one in self._letters.values() if (one.destination, one.table) == key])
        self._letters_dropped.pop(key, None)

    def _known(self) -> set[Key]:
        kept = {(one.destination, one.table) for one in self._letters.values()}
        return super()._known() | kept | set(self._letters_dropped)


def _place(letter: DeadLetter) -> tuple[TableId, str, int]:
    return letter.table, letter.place, letter.shard
