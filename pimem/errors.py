"""What can go wrong, as types.

Every message says what was wrong, where, and what to do about it. Imports nothing of ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PimemError(Exception):
    """Base of every error this package raises on purpose; the command line prints it without a traceback."""


class ConfigError(PimemError):
    """A specification, YAML file or notebook parameter that does not validate."""


class DataError(PimemError):
    """A data set, model folder or context that is missing, damaged or not what it claims to be."""


class BudgetError(PimemError):
    """A prompt that cannot fit the engine's window together with the tokens it is to generate."""


class EngineError(PimemError):
    """A model request that failed.

    `retryable` is False where asking again cannot help; `gone` is True where the engine itself has ended, so that every other
    request would fail as well.
    """

    def __init__(self, message: str, *, retryable: bool = True, gone: bool = False):
        super().__init__(message)
        self.retryable = retryable
        self.gone = gone


class StoreError(PimemError):
    """A run folder that cannot be read, written or locked."""


def nearest(name: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest right one, then all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(known)}."
