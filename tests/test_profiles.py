"""Profiles: what notebooks run with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pimem.errors import ConfigError
from pimem.profiles import Profile
from pimem.study import Study

SHIPPED = sorted(p.stem for p in (Path(__file__).parents[1] / "experiments" / "profiles").glob("*.yaml"))

BASE: dict[str, Any] = {
    "name": "t",
    "about": "a test",
    "methods": {"pi_mem": {"max_turns": 2}, "vanilla": {}},
    "notebooks": {"02_hotpotqa": {"tasks": {"hotpotqa": {}}, "lengths": [20, 40], "samples": 3}, "10_paper": {}},
}


def load(folder: Path, **changes: Any) -> Profile:
    path = folder / "p.yaml"
    path.write_text(yaml.safe_dump({**BASE, **changes}))
    return Profile.load(str(path))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_profile_validates_and_names_notebooks_that_exist(name: str) -> None:
    profile = Profile.load(name)
    assert profile.name == name
    notebooks = Path(__file__).parents[1] / "notebooks"
    assert [n for n in profile.notebooks if not (notebooks / f"{n}.ipynb").is_file()] == []


def test_runs_are_every_task_length_and_method(tmp_path: Path) -> None:
    profile = load(tmp_path)
    specs = list(profile.run_specs(profile.section("02_hotpotqa")))
    cells = [(s.task.length, s.method.method) for s in specs]
    assert cells == [(20, "pi_mem"), (20, "vanilla"), (40, "pi_mem"), (40, "vanilla")]
    assert specs[0].method.max_turns == 2  # type: ignore[union-attr]


def test_the_released_preset_reaches_tasks_and_what_is_given_wins(tmp_path: Path) -> None:
    tasks = {"hotpotqa": {}, "squad": {"order": "sample"}, "niah_multivalue": {"haystack": "hotpotqa"}, "niah_single_2": {}}
    cells = {"02_hotpotqa": {"tasks": tasks, "lengths": [2000], "samples": 1, "methods": ["vanilla"]}}
    released, paper = (
        {s.task.name: s.task.params for s in p.run_specs(p.section("02_hotpotqa"))}
        for p in (load(tmp_path, notebooks=cells, semantics=semantics) for semantics in ("released", "paper"))
    )
    assert paper == tasks
    assert released == {
        "hotpotqa": {"order": "constant"},
        "squad": {"order": "sample"},
        "niah_multivalue": {"haystack": "hotpotqa"},
        "niah_single_2": {"essays": "once"},
    }


def test_a_notebook_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    section = load(tmp_path).section("02_hotpotqa", {"lengths": [7], "samples": None, "methods": None})
    assert (section.lengths, section.samples, section.methods) == ((7,), 3, ())


def test_a_length_may_have_its_own_number_of_samples(tmp_path: Path) -> None:
    given = {**BASE["notebooks"]["02_hotpotqa"], "samples_at": {20: 1, 40: 2}}
    profile = load(tmp_path, notebooks={"02_hotpotqa": given})
    section = profile.section("02_hotpotqa")
    assert [section.samples_of(length) for length in section.lengths] == [1, 2]
    assert profile.section("02_hotpotqa", {"lengths": [20]}).samples_at == {"20": 1}
    assert profile.section("02_hotpotqa", {"samples": 1}).samples_of(40) == 1
    with pytest.raises(ConfigError, match="samples_at: 7: 2; give at least one sample"):
        profile.section("02_hotpotqa", {"samples_at": {7: 2}})


def test_a_length_may_have_its_own_methods(tmp_path: Path) -> None:
    given = {**BASE["notebooks"]["02_hotpotqa"], "methods_at": {40: ["pi_mem"]}}
    profile = load(tmp_path, notebooks={"02_hotpotqa": given})
    cells = [(s.task.length, s.method.method) for s in profile.run_specs(profile.section("02_hotpotqa"))]
    assert cells == [(20, "pi_mem"), (20, "vanilla"), (40, "pi_mem")]
    chosen = profile.section("02_hotpotqa", {"methods": ["vanilla"]})
    assert [s.method.method for s in profile.run_specs(chosen)] == ["vanilla", "vanilla"]
    assert profile.section("02_hotpotqa", {"lengths": [20]}).methods_at == {}
    with pytest.raises(ConfigError, match="methods_at: 41 is none of the lengths"):
        profile.section("02_hotpotqa", {"methods_at": {41: ["pi_mem"]}})
    with pytest.raises(ConfigError, match="no method 'rag'"):
        profile.section("02_hotpotqa", {"methods_at": {40: ["rag"]}})


def test_settings_models_and_variants_are_runs_of_their_own(tmp_path: Path) -> None:
    section: dict[str, Any] = {
        "tasks": {"hotpotqa": {"split": "eval"}, "niah_multivalue": {}},
        "lengths": [4096],
        "lengths_of": {"hotpotqa": [50]},
        "evidence_within": [1.0, 0.2],
        "models": {"base": "a", "trained": "b"},
        "samples": 2,
        "samples_at": {50: 1},
    }
    section["methods"] = ["gru_mem", "reads_on"]
    variants = {"reads_on": {"method": "gru_mem", "label": "exit gate off", "fields": {"exit_gate": False}}}
    profile = load(tmp_path, methods={"gru_mem": {"chunk_tokens": 9}}, variants=variants, notebooks={"11_gates": section})
    read = profile.section("11_gates")
    specs = list(profile.run_specs(read))
    assert [s.task.params for s in specs[:4:2]] == [{"split": "eval"}, {"split": "eval", "evidence_within": 0.2}]
    cells = [(s.model.path, s.task.name, s.task.length) for s in specs[::4]]
    assert cells == [(m, t, n) for m in "ab" for t, n in (("hotpotqa", 50), ("niah_multivalue", 4096))]
    labelled = [(label, s.method.exit_gate, s.method.chunk_tokens) for s, label in profile.labelled(read)]  # type: ignore[union-attr]
    assert labelled[:2] == [("", True, 9), ("exit gate off", False, 9)]
    assert (read.samples_of(50), read.samples_of(4096)) == (1, 2)
    assert profile.section("11_gates", {"tasks": {"niah_multivalue": {}}}).lengths_of == {}
    with pytest.raises(ConfigError, match="lengths_of: no task 'hotpot' here; did you mean 'hotpotqa'"):
        profile.section("11_gates", {"lengths_of": {"hotpot": [3]}})
    with pytest.raises(ConfigError, match=r"evidence_within: 2\.0 is no share"):
        profile.section("11_gates", {"evidence_within": [2.0]})
    with pytest.raises(ConfigError, match="evidence_within stands in the section and in the parameters of niah_single_1"):
        profile.section("11_gates", {"tasks": {"niah_single_1": {"evidence_within": 0.5}}})
    with pytest.raises(ConfigError, match=r"evidence_within: 0\.1 stands there twice"):
        profile.section("11_gates", {"evidence_within": [0.1, 0.1]})
    with pytest.raises(ConfigError, match=r"variants\.reads_on: .*did you mean 'exit_gate'"):
        load(tmp_path, variants={"reads_on": {"method": "gru_mem", "fields": {"exit_gat": False}}})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"length": [7]}, "did you mean 'lengths'"),
        ({"lengths": [7.5]}, r"lengths\[0\]: expected int"),
        ({"lengths": "7"}, "lengths: expected a list"),
        ({"samples": "4"}, "samples: expected int, got '4'"),
        ({"samples": 0}, "samples >= 1"),
        ({"methods": ["pimem"]}, "did you mean 'pi_mem'"),
        ({"methods": ["rag"]}, "no method 'rag'"),
        ({"methods": ["pi_mem", "vanilla", "pi_mem"]}, "methods: 'pi_mem' stands there twice"),
        ({"lengths": [7, 9, 7]}, "lengths: 7 stands there twice"),
    ],
)
def test_a_wrong_parameter_is_named_with_the_nearest_right_one(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(tmp_path).section("02_hotpotqa", changes)


def test_unknown_profiles_notebooks_and_keys_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'smoke'"):
        Profile.load("smok")
    with pytest.raises(ConfigError, match="did you mean '02_hotpotqa'"):
        load(tmp_path).section("02_hotpot")
    with pytest.raises(ConfigError, match="did you mean 'prompts'"):
        load(tmp_path, prompt="small")
    with pytest.raises(ConfigError, match="did you mean 'chunk_tokens'"):
        load(tmp_path, methods={"pi_mem": {"chunk_token": 5}})
    with pytest.raises(ConfigError, match="unknown semantics"):
        load(tmp_path, semantics="relesed")
    with pytest.raises(ConfigError, match="no notebook 2; Known: 02_hotpotqa"):
        load(tmp_path).section(2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tasks need methods"):
        load(tmp_path, methods={})
    load(tmp_path, notebooks={"02": {"tasks": {"hotpotqa": {}, "hotpot": {}}, "lengths": [2], "samples": 1}})
    with pytest.raises(ConfigError, match="unknown task 'hotpot'; did you mean 'hotpotqa'"):
        Study("02", str(tmp_path / "p.yaml"))


@pytest.mark.parametrize("name", [3, None, True, 3.5, ["smoke"], {"name": "smoke"}, Path("smoke")])
def test_a_profile_is_named_by_text(name: Any) -> None:
    with pytest.raises(ConfigError, match="profile: expected the name of a profile"):
        Profile.load(name)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/x", "a b", "x\n", ".hidden"])
def test_a_profiles_name_is_a_folders(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name a folder"):
        load(tmp_path, name=name)


VARIANTS: dict[str, Any] = {
    "long": {"method": "yarn", "label": "x4", "model": {"yarn": 4.0, "window": 8192}},
    "boxed": {
        "method": "pi_mem",
        "label": "other",
        "fields": {"read_tokens": 9},
        "prompts": "small",
        "params": {"ask": "nothing"},
    },
    "theirs": {"method": "rag", "label": "official", "semantics": "official", "sampling": {"temperature": 0.1}},
}


def test_a_variant_is_a_method_under_its_own_settings(tmp_path: Path) -> None:
    variants = {name: VARIANTS[name] for name in ("long", "boxed", "theirs")}
    section = {"tasks": {"longbench_v2": {"file": "f"}}, "lengths": [99], "samples": 1, "methods": ["vanilla", *variants]}
    profile = load(tmp_path, variants=variants, notebooks={"04": {**section, "prompts": "longbench_v2"}})
    runs = list(profile.labelled(profile.section("04")))
    assert [(s.method.method, label) for s, label in runs] == [
        ("vanilla", ""),
        ("yarn", "x4"),
        ("pi_mem", "other"),
        ("rag", "official"),
    ]
    vanilla, long, boxed, theirs = (spec for spec, _ in runs)
    assert (long.model.yarn, long.model.window, vanilla.model.yarn) == (4.0, 8192, 1.0)
    assert (boxed.method.read_tokens, boxed.method.max_turns) == (9, 2)  # type: ignore[union-attr]
    assert [s.prompts for s in (vanilla, boxed)] == ["longbench_v2", "small"]
    assert (vanilla.task.params, boxed.task.params) == ({"file": "f"}, {"file": "f", "ask": "nothing"})
    assert (theirs.method.answer_tokens, theirs.sampling.temperature) == (128, 0.1)
    assert list(profile.run_specs(profile.section("04"))) == [spec for spec, _ in runs]


def test_pi_mem_is_run_with_each_number_of_turns_labelled_where_it_is_not_its_own(tmp_path: Path) -> None:
    profile = load(tmp_path)
    section = profile.section("02_hotpotqa", {"turns": [2, 1], "lengths": [20]})
    runs = list(profile.labelled(section))
    assert [(s.method.method, getattr(s.method, "max_turns", None), label) for s, label in runs] == [
        ("pi_mem", 2, ""),
        ("pi_mem", 1, "K=1"),
        ("vanilla", None, ""),
    ]


@pytest.mark.parametrize(
    ("variant", "says"),
    [
        ({"vanilla": {"method": "vanilla"}}, "'vanilla' is the name of a method"),
        ({"x": {"method": "vanila"}}, r"variants\.x: .*did you mean 'vanilla'"),
        ({"x": {"method": "yarn"}}, r"variants\.x: method: yarn over a model with yarn=1 is vanilla"),
        (
            {"x": {"method": "vanilla", "model": {"yarn": 4.0}}},
            r"variants\.x: method: vanilla over a model with yarn=4 is yarn",
        ),
        ({"x": {"method": "vanilla", "model": {"windw": 4}}}, r"variants\.x: .*did you mean 'window'"),
    ],
)
def test_a_variant_that_makes_no_sense_is_refused_on_loading(tmp_path: Path, variant: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(tmp_path, variants=variant)


@pytest.mark.parametrize(("turns", "says"), [([0], "at least one turn"), ([2, 2], "turns: 2 stands there twice")])
def test_turns_that_make_no_sense_are_refused(tmp_path: Path, turns: list[int], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(tmp_path).section("02_hotpotqa", {"turns": turns})
