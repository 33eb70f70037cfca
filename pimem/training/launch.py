"""From a specification to a run of verl: checks before anything starts, verl's settings, the run, the weights at its end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pimem import models, packages
from pimem.config import ModelSpec, SamplingSpec, as_dict, canonical_hash, load_yaml
from pimem.errors import BudgetError, ConfigError, DataError, EngineError, PimemError, StoreError, nearest
from pimem.prompts import PromptSet
from pimem.tokens import Tokenizer
from pimem.training import export, question_sets, questions
from pimem.training.question_sets import QuestionSet
from pimem.training.questions import Questions
from pimem.training.settings import CHECKPOINTS, EVALUATION, LOOPS, ROWS, compose, environment, settings
from pimem.training.spec import Run, TrainSpec, load
from pimem.workflows.base import build

SETTINGS = "verl.yaml"
"""Of a run's folder: all that verl was told."""
CONFIGS = Path(__file__).parent / "configs"
LOOP = "pimem.training.agent_loop.WorkflowLoop"


def check(train: TrainSpec) -> tuple[Run, Questions, Questions | None]:
    """The run a specification stands for, and its questions. Raises what is wrong with it before anything starts.

    `DataError` for a model or questions that are not there, `ConfigError` for fewer questions than a batch, `BudgetError` for
    a question that does not fit the window: nothing is ever cut.
    """
    model = models.resolve(train.model)
    tokenizer = Tokenizer.load(model)
    sampling = SamplingSpec(train.temperature, train.top_p, train.seed)
    prompts = PromptSet.load(train.prompts)
    if prompts.answer_form != train.reward.answer_form:
        raise ConfigError(
            f"reward.answer_form: {train.reward.answer_form!r}, and prompt set {train.prompts!r} asks for "
            f"{prompts.answer_form!r}, so no answer would ever count; make them the same"
        )
    workflow = build(train.method, prompts, tokenizer, train.model.window, sampling, 0, train.model.template_args)
    asked = held(train.questions, train.machines.questions, tokenizer)
    judged = held(train.evaluation, train.machines.evaluation, tokenizer) if train.evaluation else None
    if len(asked) < train.batch:
        raise ConfigError(
            f"batch: {train.batch} prompts a step, and {asked.folder} holds {len(asked)} questions; build more, or lower it"
        )
    for known in (asked, judged) if judged else (asked,):
        for row in known:
            try:
                workflow.check_question(tokenizer.encode(row.question.strip()))
            except BudgetError as error:
                raise BudgetError(f"{known.folder}: the question {row.id} is too long: {error}") from None
    where = judged.folder.resolve() if judged else None
    return Run(train, model, models.fingerprint(model), asked.folder.resolve(), where), asked, judged


def held(wanted: QuestionSet, folder: str | None, tokenizer: Tokenizer) -> Questions:
    """The set in a folder that was named, or in the cache, where it is built if it is missing.

    Raises `DataError` for a folder with another set.
    """
    if folder is None:
        name = canonical_hash({"set": as_dict(wanted), "tokenizer": tokenizer.hash, "format": question_sets.FORMAT})
        return question_sets.make(wanted, tokenizer, packages.home() / "questions" / name)
    known = questions.load(Path(folder).expanduser(), tokenizer)
    if known.manifest["spec"] != as_dict(wanted):
        raise DataError(f"{folder}: holds a set made of other parts than this configuration names; build it from the same ones")
    return known


def train(train: TrainSpec, out: Path, resume: bool = True, seconds: float = 0.0) -> Path:
    """Trains, goes on with what is there, and writes the weights; returns their folder.

    `seconds`: ends after the step that comes closest to this much time from now, with a checkpoint; 0 for all steps.

    Raises `ConfigError`, `DataError`, `BudgetError`, `StoreError` or `EngineError`; what was checkpointed stays.
    """
    import yaml

    until = time.time() + seconds if seconds else 0.0
    os.environ.update(environment(train))
    _refuse_late_import()
    run, asked, judged = check(train)
    out = out.expanduser().resolve()
    run.claim(out)
    questions.parquet(asked, out / ROWS, "pimem")
    loops = [{"name": "pimem", "_target_": LOOP, "folder": str(out), "evaluation": False}]
    if judged is not None:
        questions.parquet(judged, out / EVALUATION, "pimem_evaluation")
        loops.append({**loops[0], "name": "pimem_evaluation", "evaluation": True})
    (out / LOOPS).write_text(yaml.safe_dump(loops), encoding="utf-8")
    said = settings(run, out, resume, until)
    (out / SETTINGS).write_text(yaml.safe_dump(said), encoding="utf-8")
    config = compose(said, train.machines.backend)
    done = last_step(out)
    if done < train.steps or not resume:
        _run(config)
    return export.weights(run, out, last_step(out))


def command(
    config: str,
    out: Path,
    changes: Mapping[str, Any],
    *,
    resume: bool = True,
    check_only: bool = False,
    seconds: float = 0.0,
) -> Path | None:
    """`pimem train`: a run of reinforcement learning, or a cold start where the configuration is of one.

    Returns the folder of what was made, None where it was only checked. Raises as `train` does.
    """
    path = find(config)
    if "method" not in load_yaml(path):
        return _cold_start(path, out, changes, check_only)
    wanted = load(path, changes)
    if not check_only:
        return train(wanted, out, resume, seconds)
    os.environ.update(environment(wanted))
    run, asked, _ = check(wanted)
    compose(settings(run, out.expanduser().resolve()), wanted.machines.backend)
    print(
        f"{path}: {wanted.method.method} with {run.model}, {wanted.steps} steps of {wanted.batch} x {wanted.group} rollouts in "
        f"{wanted.updates} updates, over {len(asked):,} questions; nothing was started"
    )
    return None


def find(config: str) -> Path:
    """The configuration of that name in the package, or the file. Raises `ConfigError` where there is neither."""
    shipped = {path.stem: path for path in sorted(CONFIGS.glob("*.yaml"))}
    if config in shipped:
        return shipped[config]
    if not Path(config).is_file():
        raise ConfigError(f"{config}: neither a file nor a configuration of this package; {nearest(config, shipped)}")
    return Path(config)


def _cold_start(path: Path, out: Path, changes: Mapping[str, Any], check_only: bool) -> Path | None:
    from pimem.training import cold_start, data
    from pimem.training.recipe import load_config

    if changes:
        raise ConfigError(f"{path}: a cold start takes no --set; write its fields into a file")
    recipe = load_config(path)
    model = models.resolve(ModelSpec(path=recipe.base, window=1))
    if check_only:
        print(f"{path}: cold start of {model}; nothing was started")
        return None
    made = out / "data"
    if not all((made / name).is_file() for name in ("train.xz", "eval.xz")):
        data.main([str(path), "--model", str(model), "--out", str(made)])
    cold_start.main([str(path), "--model", str(model), "--data", str(made), "--out", str(out)])
    return out


def last_step(out: Path) -> int:
    """Step of the newest whole checkpoint, 0 before the first."""
    marker = out / CHECKPOINTS / "latest_checkpointed_iteration.txt"
    try:
        return int(marker.read_text())
    except FileNotFoundError:
        return 0
    except ValueError as error:
        raise StoreError(f"{marker}: not the number of a step ({error}); write the newest whole checkpoint's into it") from None


def _run(config: Any) -> None:
    import ray
    from verl.trainer.main_ppo import run_ppo

    from pimem.training.trainer import Runner

    try:
        run_ppo(config, task_runner_class=ray.remote(num_cpus=1)(Runner))
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, PimemError):
            raise cause from None
        raise EngineError(f"training stopped: {type(cause).__name__}: {str(cause)[-2000:]}", retryable=False) from error
    finally:
        ray.shutdown()


def _refuse_late_import() -> None:
    """verl reads its environment as it is imported."""
    if "verl" in sys.modules and os.environ.get("VERL_PLATFORM") == "cpu":
        from verl.plugin.platform import get_platform

        if get_platform().device_name != "cpu":
            raise DataError("verl was imported before the CPU was chosen; start `pimem train` in a process of its own")
