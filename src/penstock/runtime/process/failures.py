"""Make one error of what several parts of a run failed with."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import CheckFailed, EnvironmentMissing, PenstockError


def failures_as_one(kind: str, failed: Mapping[str, BaseException], all_of_them: int) -> BaseException:
    """Return one error as it is, but for the name of who failed if there are others; of several the list.

    What is missing for all of them counts more than what one failed with. `kind` is `source` or `destination`.
    """
    for error in failed.values():
        if not isinstance(error, PenstockError) or isinstance(error, EnvironmentMissing):
            return error
    name, first = next(iter(failed.items()))
    if all_of_them == 1:
        return first
    if len(failed) == 1 and isinstance(first, PenstockError):
        return type(first)(f"{kind} {name}: {first.what}", first.solution)
    said = "; ".join(f"{name}: {getattr(error, 'what', error)}" for name, error in failed.items())
    return CheckFailed(
        f"{len(failed)} of {all_of_them} {kind}s failed: {said}", "`penstock status` says why and what to do for each"
    )
