"""What the quickstart notebook calls: `pimem.ask` with a profile's model, prompts and budgets."""

from __future__ import annotations

from collections.abc import Sequence

from pimem import paths
from pimem.ask import Asked, answer
from pimem.profiles import Profile

NOTEBOOK = "00_quickstart"


def ask(profile: str, question: str | None = None, files: Sequence[str] | None = None, method: str = "pi_mem") -> Asked:
    """Answers the profile's question over its files, or another one, by one of the profile's methods."""
    loaded = Profile.load(profile)
    section = loaded.section(NOTEBOOK, {"question": question, "files": files})
    return answer(
        [paths.root() / name for name in section.files],
        section.question,
        method=loaded.method(method),
        model=loaded.model,
        prompts=loaded.prompts,
        sampling=loaded.sampling,
        engine=loaded.engine,
        execution=loaded.execution,
    )
