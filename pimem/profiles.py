"""Profiles: one YAML file says which model, engine, methods and cells every notebook runs with.

`experiments/profiles/<name>.yaml` holds what all notebooks share and a section for each notebook. A notebook's own parameters,
set by papermill or by hand, go on top of its section.
"""

from __future__ import annotations

import itertools
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
    PiMemSpec,
    RunSpec,
    SamplingSpec,
    TaskSpec,
    as_dict,
    build,
    load_yaml,
    method_spec,
    task_params,
)
from pimem.errors import ConfigError, nearest

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Variant:
    """A method under other settings than the profile's; its name stands among the methods that a notebook runs."""

    method: str
    """The method."""
    label: str = ""
    """Stands behind the method's name in tables; two rows of one method need different ones."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of the method, on top of the profile's own for it."""
    params: dict[str, Any] = field(default_factory=dict)
    """Parameters of the task, on top of the section's."""
    model: dict[str, Any] = field(default_factory=dict)
    """Fields of the model, on top of the profile's: the window and factor of YaRN, say."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """Fields of the sampling, on top of the profile's."""
    prompts: str = ""
    """The prompt set; empty takes the notebook's."""
    semantics: str = ""
    """The preset under the method's fields, in place of the profile's fields; empty takes both from the profile."""


@dataclass(frozen=True)
class Section:
    """What one notebook runs: methods x tasks x lengths."""

    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Task name to the task parameters that differ from its defaults."""
    lengths: tuple[int, ...] = ()
    """Tokens, or documents for hotpotqa unless its parameter `unit` says otherwise."""
    samples: int = 0
    """Samples a cell."""
    samples_at: dict[str, int] = field(default_factory=dict)
    """Length to samples a cell, for lengths that get another number."""
    lengths_of: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Task to its own lengths, for tasks of a section that count in another unit."""
    evidence_within: tuple[float, ...] = ()
    """Shares of the context in which the evidence lies, each a setting of every task; empty leaves it to the tasks."""
    methods: tuple[str, ...] = ()
    """Methods and variants compared; empty takes all methods of the profile."""
    methods_at: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Length to the methods compared there, for lengths that some methods would take days for."""
    models: dict[str, str] = field(default_factory=dict)
    """Models compared, in place of the profile's: what outputs call each, and its name or folder."""
    turns: tuple[int, ...] = ()
    """PI-Mem is run with each of these K, labelled so where it is not the method's own; empty takes that one."""
    prompts: str = ""
    """The prompt set, or a folder with one; empty takes the profile's."""
    seed: int = 42
    """Seed of the samples."""
    question: str = ""
    """The question of a notebook that asks about files."""
    files: tuple[str, ...] = ()
    """Text files it is asked about, relative to the repository."""

    def samples_of(self, length: int) -> int:
        """Samples of a cell of this length."""
        return self.samples_at.get(str(length), self.samples)

    def lengths_at(self, task: str) -> tuple[int, ...]:
        """Lengths of a task."""
        return self.lengths_of.get(task, self.lengths)

    @property
    def every_length(self) -> list[int]:
        """The lengths of all tasks."""
        return sorted({*self.lengths, *itertools.chain.from_iterable(map(self.lengths_at, self.tasks))})

    def settings(self, task: str) -> Iterator[dict[str, Any]]:
        """Parameters of a task, a set for each of `evidence_within`."""
        for share in self.evidence_within or (1.0,):
            # The whole context is the tasks' default: such a run is the same one in every notebook.
            yield self.tasks[task] | ({} if share == 1 else {"evidence_within": share})

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
    variants: dict[str, Variant] = field(default_factory=dict)
    """Methods under other settings, by names of their own."""
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
    """The preset under the fields of methods and the parameters of tasks: paper or released."""
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
        for name in profile.variants:
            if name in METHODS:
                raise ConfigError(f"{path}: variants: {name!r} is the name of a method; give the variant another one")
            try:
                profile._run(name, TaskSpec(), "")
            except ConfigError as error:
                raise ConfigError(f"{path}: variants.{name}: {error}") from None
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
        for method in (*section.methods, *itertools.chain.from_iterable(section.methods_at.values())):
            if method not in self.variants:
                self.method(method)
        if unknown := [task for task in section.lengths_of if task not in section.tasks]:
            raise ConfigError(f"{where}: lengths_of: no task {unknown[0]!r} here; {nearest(unknown[0], section.tasks)}")
        for task in section.tasks:
            lengths = section.lengths_at(task)
            if section.samples < 1 or not lengths or min(lengths) < 1:
                raise ConfigError(
                    f"{where}: tasks need samples >= 1 and lengths >= 1; got {section.samples} and {list(lengths)} for {task}"
                )
        if twice_said := [task for task, own in section.tasks.items() if section.evidence_within and "evidence_within" in own]:
            raise ConfigError(
                f"{where}: evidence_within stands in the section and in the parameters of {twice_said[0]}; keep one"
            )
        if wrong := [share for share in section.evidence_within if not 0 < share <= 1]:
            raise ConfigError(f"{where}: evidence_within: {wrong[0]} is no share; give numbers above 0, at most 1")
        if section.tasks and not (section.methods or self.methods):
            raise ConfigError(f"{where}: tasks need methods, and neither the section nor the profile names one")
        if section.turns and min(section.turns) < 1:
            raise ConfigError(f"{where}: turns: {list(section.turns)}; PI-Mem needs at least one turn")
        lists: dict[str, tuple[Any, ...]] = {"lengths": section.lengths, "methods": section.methods, "turns": section.turns}
        lists |= {f"methods_at: {length}": methods for length, methods in section.methods_at.items()}
        lists |= {f"lengths_of: {task}": lengths for task, lengths in section.lengths_of.items()}
        lists |= {"evidence_within": section.evidence_within, "models": tuple(section.models.values())}
        for what, listed in lists.items():
            if twice := [value for i, value in enumerate(listed) if value in listed[:i]]:
                raise ConfigError(f"{where}: {what}: {twice[0]!r} stands there twice; one cell cannot be run as two")
        known_lengths = section.every_length
        for length, samples in section.samples_at.items():
            if samples < 1 or length not in map(str, known_lengths):
                raise ConfigError(
                    f"{where}: samples_at: {length}: {samples}; give at least one sample, for one of {known_lengths}"
                )
        if unknown := [length for length in section.methods_at if length not in map(str, known_lengths)]:
            raise ConfigError(f"{where}: methods_at: {unknown[0]} is none of the lengths {known_lengths}")

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
        if "lengths_of" not in given:
            own = {task: lengths for task, lengths in base.lengths_of.items() if task in section.tasks}
            section = replace(section, lengths_of=own)
        if "samples_at" not in given:
            lengths = set(map(str, section.every_length))
            kept = {} if "samples" in given else {k: v for k, v in base.samples_at.items() if k in lengths}
            section = replace(section, samples_at=kept)
        if "methods_at" not in given:
            lengths = set(map(str, section.every_length))
            own_methods = {} if "methods" in given else {k: v for k, v in base.methods_at.items() if k in lengths}
            section = replace(section, methods_at=own_methods)
        self.check(section, f"{notebook}: parameters")
        return section

    def run_specs(self, section: Section) -> Iterator[RunSpec]:
        """The runs of a section: model by model, task by task, setting by setting, length by length, method by method."""
        return (spec for spec, _ in self.labelled(section))

    def labelled(self, section: Section) -> Iterator[tuple[RunSpec, str]]:
        """The runs of a section, each with what stands behind its method's name in tables."""
        for path, task in itertools.product(section.models.values() or (None,), section.tasks):
            for own, length in itertools.product(section.settings(task), section.lengths_at(task)):
                asked = TaskSpec(task, length, section.seed, task_params(task, own, self.semantics))
                for name in section.methods_at.get(str(length)) or section.methods or tuple(self.methods):
                    spec, label = self._run(name, asked, section.prompts)
                    spec = replace(spec, model=replace(spec.model, path=path)) if path else spec
                    yield from _turned(spec, label, section.turns)

    def _run(self, name: str, task: TaskSpec, prompts: str) -> tuple[RunSpec, str]:
        """The run of a method or variant over a task, and its label."""
        prompts = prompts or self.prompts
        if name not in self.variants:
            return RunSpec(self.method(name), self.model, task, self.sampling, prompts), ""
        variant = self.variants[name]
        own = {} if variant.semantics else self.methods.get(variant.method, {})
        run = RunSpec(
            method=method_spec(variant.method, {**own, **variant.fields}, variant.semantics or self.semantics),
            model=build(ModelSpec, {**as_dict(self.model), **variant.model}, "model"),
            task=replace(task, params={**task.params, **variant.params}),
            sampling=build(SamplingSpec, {**as_dict(self.sampling), **variant.sampling}, "sampling"),
            prompts=variant.prompts or prompts,
        )
        return run, variant.label


def _turned(spec: RunSpec, label: str, turns: tuple[int, ...]) -> Iterator[tuple[RunSpec, str]]:
    """A run of PI-Mem for each K, with its label; any other run as it is."""
    method = spec.method
    if not (turns and isinstance(method, PiMemSpec)):
        yield spec, label
        return
    for k in turns:
        said = "" if k == method.max_turns else f"K={k}"
        yield replace(spec, method=replace(method, max_turns=k)), ", ".join(filter(None, (label, said)))
