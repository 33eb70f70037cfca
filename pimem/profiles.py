"""Profiles: one YAML file says which model, engine, methods and cells every notebook runs with.

`experiments/profiles/<name>.yaml` holds what all notebooks share and a section for each notebook. A notebook's own parameters,
set by papermill or by hand, go on top of its section.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pimem import paths
from pimem.config import (
    METHODS,
    EngineSpec,
    Execution,
    MethodSpec,
    ModelSpec,
    RunSpec,
    SamplingSpec,
    TaskSpec,
    build,
    load_yaml,
    method_spec,
)
from pimem.errors import ConfigError, nearest

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Section:
    """What one notebook runs: methods x tasks x lengths."""

    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Task name to the task parameters that differ from its defaults."""
    lengths: tuple[int, ...] = ()
    """Documents for hotpotqa, tokens for the other tasks."""
    samples: int = 0
    """Samples a cell."""
    samples_at: dict[str, int] = field(default_factory=dict)
    """Length to samples a cell, for lengths that get another number."""
    methods: tuple[str, ...] = ()
    """Methods compared; empty takes all of the profile."""
    seed: int = 42
    """Seed of the samples."""
    question: str = ""
    """The question of a notebook that asks about files."""
    files: tuple[str, ...] = ()
    """Text files it is asked about, relative to the repository."""

    def samples_of(self, length: int) -> int:
        """Samples of a cell of this length."""
        return self.samples_at.get(str(length), self.samples)

    @property
    def runs(self) -> bool:
        """Whether the notebook asks a model anything; the others report on what those did."""
        return bool(self.tasks or self.files)


@dataclass(frozen=True)
class Profile:
    """Everything the notebooks of one scale share."""

    name: str
    """The name of its outputs' folders."""
    about: str
    """For which machine, and how long it takes."""
    methods: dict[str, dict[str, Any]]
    """Method name to the fields that differ from the method's defaults."""
    notebooks: dict[str, Section]
    """Notebook name, without suffix, to what it runs; in the order they are executed."""
    model: ModelSpec = field(default_factory=ModelSpec)
    """The weights."""
    engine: EngineSpec = field(default_factory=EngineSpec)
    """What executes the requests."""
    execution: Execution = field(default_factory=Execution)
    """How many at a time."""
    sampling: SamplingSpec = field(default_factory=SamplingSpec)
    """How completions are drawn."""
    prompts: str = "default"
    """The prompt set."""
    semantics: str = "paper"
    """The preset under the methods' fields: paper or released."""
    parallel: int = 1
    """Notebooks executed at a time, each with an engine of its own."""
    published_model: str = ""
    """The paper's name of the model, where model, data and sampling are the paper's own; empty where they are not."""
    before_rl: str = ""
    """The model before reinforcement learning, where it is run beside `model`: tables name its rows "w/o RL"."""

    @classmethod
    def load(cls, name: str) -> Profile:
        """The profile of this name, or in this YAML file.

        Raises `ConfigError` where there is none or where anything in it does not validate.
        """
        if not isinstance(name, str):
            raise ConfigError(f"profile: expected the name of a profile or a YAML file, got {name!r} ({type(name).__name__})")
        folder = paths.root() / "experiments" / "profiles"
        path = folder / f"{name}.yaml" if (folder / f"{name}.yaml").is_file() else Path(name)
        if not path.is_file():
            known = [p.stem for p in folder.glob("*.yaml")]
            raise ConfigError(f"profile {name!r}: no such profile or file; {nearest(name, known)}")
        profile = build(cls, load_yaml(path), str(path))
        if not _NAME.fullmatch(profile.name):
            raise ConfigError(f"{path}: name: {profile.name!r} cannot name a folder; use letters, digits, '.', '_' and '-'")
        if profile.parallel < 1:
            raise ConfigError(f"{path}: parallel={profile.parallel}; at least one notebook must run at a time")
        for method in profile.methods:
            profile.method(method)
        for notebook, section in profile.notebooks.items():
            profile.check(section, f"{path}: notebooks.{notebook}")
        return profile

    def method(self, name: str) -> MethodSpec:
        """The specification of one of the profile's methods."""
        if name not in self.methods:
            known = METHODS if name not in METHODS else self.methods
            raise ConfigError(f"profile {self.name}: no method {name!r}; {nearest(name, known)}")
        return method_spec(name, self.methods[name], self.semantics)

    def check(self, section: Section, where: str) -> None:
        """Raises `ConfigError` for a section that names an unknown method or asks for nothing sensible."""
        for method in section.methods:
            self.method(method)
        if section.tasks and (section.samples < 1 or not section.lengths or min(section.lengths) < 1):
            raise ConfigError(
                f"{where}: tasks need samples >= 1 and lengths >= 1; got {section.samples} and {list(section.lengths)}"
            )
        if section.tasks and not (section.methods or self.methods):
            raise ConfigError(f"{where}: tasks need methods, and neither the section nor the profile names one")
        for what, listed in (("lengths", section.lengths), ("methods", section.methods)):
            if twice := [value for i, value in enumerate(listed) if value in listed[:i]]:
                raise ConfigError(f"{where}: {what}: {twice[0]!r} stands there twice; one cell cannot be run as two")
        for length, samples in section.samples_at.items():
            if samples < 1 or length not in map(str, section.lengths):
                raise ConfigError(
                    f"{where}: samples_at: {length}: {samples}; give at least one sample, for one of {list(section.lengths)}"
                )

    def section(self, notebook: str, changes: Mapping[str, Any] | None = None) -> Section:
        """A notebook's section with a notebook's own parameters on top; parameters that are None change nothing.

        Raises `ConfigError` for an unknown notebook or parameter, or a wrong type.
        """
        if notebook not in self.notebooks:
            raise ConfigError(f"profile {self.name}: no notebook {notebook!r}; {nearest(notebook, self.notebooks)}")
        given = {k: v for k, v in (changes or {}).items() if v is not None}
        base = self.notebooks[notebook]
        changed = build(Section, given, f"{notebook}: parameters")
        section = replace(base, **{k: getattr(changed, k) for k in given})
        if "samples_at" not in given:
            kept = {} if "samples" in given else {k: v for k, v in base.samples_at.items() if k in map(str, section.lengths)}
            section = replace(section, samples_at=kept)
        self.check(section, f"{notebook}: parameters")
        return section

    def run_specs(self, section: Section) -> Iterator[RunSpec]:
        """The runs of a section: task by task, length by length, method by method."""
        for task, params in section.tasks.items():
            for length in section.lengths:
                for method in section.methods or tuple(self.methods):
                    yield RunSpec(
                        method=self.method(method),
                        model=self.model,
                        task=TaskSpec(task, length, section.seed, params),
                        sampling=self.sampling,
                        prompts=self.prompts,
                    )
