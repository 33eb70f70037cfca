"""The examples of the cold start over a small corpus: what each case says is what the workflows would send and make of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pimem import data as fetched
from pimem.config import GruMemSpec, MemAgentSpec, PiMemSpec, ReMemR1Spec, SamplingSpec
from pimem.errors import DataError
from pimem.prompts import PromptSet
from pimem.tokens import Tokenizer
from pimem.training import data, mix
from pimem.training.examples import Builder
from pimem.training.recipe import ColdStart
from pimem.training.scenes import Source
from pimem.workflows import base
from pimem.workflows.gru_mem import parse_step as gates
from pimem.workflows.pi_mem import parse_check
from pimem.workflows.rememr1 import parse_step as parts

PROMPTS = PromptSet.load("trained")
METHODS = ("pi_mem", "mem_agent", "gru_mem", "rememr1")
SPECS = {"pi_mem": PiMemSpec(), "mem_agent": MemAgentSpec(), "gru_mem": GruMemSpec(), "rememr1": ReMemR1Spec()}


def short(rng: np.random.Generator) -> int:
    return int(rng.integers(150, 500))


@pytest.fixture(scope="module")
def source(cold_home: None, tiny: Tokenizer) -> Callable[..., Source]:
    return lambda part="train", seed=5: Source(tiny, fetched.corpus("hotpotqa"), fetched.corpus("squad"), part, seed)


@pytest.fixture(scope="module")
def builder(source: Callable[..., Source]) -> Builder:
    return Builder(source(), PROMPTS, short)


@pytest.fixture(scope="module")
def made(builder: Builder) -> list[Any]:
    return list(mix.examples(builder, 400, METHODS))


def text(builder: Builder, example: Any) -> str:
    return builder.tokenizer.decode(example.response[:-1])


def notes_of(builder: Builder, example: Any, heading: str = "Notes:\n") -> list[str]:
    prompt = builder.tokenizer.decode(example.prompt)
    return prompt.split(heading, 1)[1].split("\n\n", 1)[0].split("\n")


def test_every_method_gets_the_same_number_of_tokens(made: list[Any]) -> None:
    spent: Counter[str] = Counter()
    for example in made:
        spent[example.method] += len(example.prompt) + len(example.response)
    longest = max(len(e.prompt) + len(e.response) for e in made)
    assert set(spent) == set(METHODS)
    assert max(spent.values()) - min(spent.values()) <= longest


def test_only_the_methods_asked_for_are_trained(builder: Builder) -> None:
    alone = list(mix.examples(builder, 40, ["mem_agent"]))
    assert {e.method for e in alone} == {"mem_agent"}
    assert not any(e.case.split(": ")[-1].startswith(("gold", "none", "gated", "recall")) for e in alone)


def test_prompts_are_those_of_the_workflows(builder: Builder, made: list[Any]) -> None:
    """Every prompt begins and ends with the static ids of one of its method's templates."""
    phases = {
        "pi_mem": ("read", "read_cached", "read_all", "read_all_cached", "merge", "final"),
        "mem_agent": ("update", "final"),
        "gru_mem": ("gated_update", "final"),
        "rememr1": ("recall_update", "recall_final"),
    }
    for method, spec in SPECS.items():
        workflow = base.build(spec, PROMPTS, builder.tokenizer, 1 << 15, SamplingSpec())
        pieces = [workflow.template(phase).pieces for phase in (*phases[method], "answer", "retrieved")]
        for example in (e for e in made if e.method == method):
            ends = [
                np.array_equal(example.prompt[: len(p[0])], p[0]) and np.array_equal(example.prompt[-len(p[-1]) :], p[-1])
                for p in pieces
            ]
            assert any(ends), example.case


def test_responses_end_once_and_keep_their_form(builder: Builder, made: list[Any]) -> None:
    end = builder.tokenizer.hf.eos_token_id
    for example in made:
        said, case = text(builder, example), example.case
        assert list(example.response).count(end) == 1
        assert example.response[-1] == end
        if ": gated" in case:
            assert gates(said) is not None
        elif ": recall" in case:
            assert parts(said).well_formed
        elif ": final" in case or case.endswith(("answer", "retrieved")):
            assert said.startswith("\\boxed{")
        elif "gold" in case or "none" in case or case == "random":
            assert parse_check(said) == ("yes" if example.facts else "no")


def test_reads_list_what_the_section_states_and_the_notes_lack(builder: Builder, made: list[Any]) -> None:
    reads = [e for e in made if e.method == "pi_mem" and ": gold" in e.case]
    assert len(reads) > 10
    for example in reads:
        notes = notes_of(builder, example)
        assert not set(example.facts) & set(notes), example.case
        assert (example.facts == ()) == example.case.endswith("known") or example.case.endswith("rest known")


def test_gates_say_what_the_notes_and_the_section_hold(builder: Builder, made: list[Any]) -> None:
    steps = [e for e in made if ": gated" in e.case]
    seen = set()
    for example in steps:
        step = gates(text(builder, example))
        assert step is not None
        notes = [n for n in notes_of(builder, example) if n != PROMPTS.empty_memory]
        candidate = [n for n in step.candidate.split("\n") if n != PROMPTS.empty_memory]
        assert candidate[: len(notes)] == notes
        assert step.update == (len(candidate) > len(notes))
        seen.add((step.update, step.end))
    assert len(seen) == 4


def test_recalled_lines_come_back_into_the_notes(builder: Builder) -> None:
    cases = Counter()
    for example in (builder.recall("chain") for _ in range(200)):
        step = parts(text(builder, example))
        notes, recalled = notes_of(builder, example), notes_of(builder, example, "Recalled:\n")
        assert step.memory is not None
        after = step.memory.split("\n")
        if "restores" in example.case:
            assert set(recalled) & (set(after) - set(notes))
        if step.query:
            assert step.query in example.question + "".join(after)
        cases[example.case.split(": ")[1]] += 1
    assert {"recall none", "recall none, asks", "recall restores", "recall shown"} <= set(cases)


def test_unknown_is_said_only_where_the_notes_hold_no_gold_fact(builder: Builder) -> None:
    unknown = 0
    for kind in ("hotpotqa", "squad", "needles", "planted", "chain"):
        for example in (builder.final(kind) for _ in range(150)):
            said = text(builder, example)
            assert (said == "\\boxed{unknown}") == ("nothing known" in example.case)
            unknown += "nothing known" in example.case
            if kind not in ("hotpotqa", "squad") and "nothing known" not in example.case:
                memory = "\n".join(notes_of(builder, example)).lower()
                parts_said = said.removeprefix("\\boxed{").removesuffix("}").split(", ")
                assert all(a.lower() in memory for a in parts_said), (kind, said)
    assert 12 < unknown < 75


def test_facts_that_nothing_leads_to_are_not_trained_on_alone(builder: Builder) -> None:
    for example in (builder.read("chain", "none") for _ in range(60)):
        assert "nothing leads to it" not in example.case


def test_held_out_cases_name_them(source: Callable[..., Source]) -> None:
    held_out = Builder(source("eval"), PROMPTS, short)
    config = ColdStart(methods=METHODS, eval_cases=12, eval_negatives=3, eval_section=300)
    cases = Counter(e.case for e in mix.evaluation(held_out, config))
    assert cases["chain: gold, nothing leads to it"] > 0
    assert cases["random"] == 3
    assert {"hotpotqa: update", "hotpotqa: final", "hotpotqa: final with recall", "needles: retention"} <= set(cases)
    assert any(case.startswith("hotpotqa: gated") for case in cases)
    assert not any("nothing known" in case for case in cases)
    assert cases["squad: gold"] + cases["squad: cut"] == 12
    for case in ("squad: gold known", "squad: none", "unanswerable: none", "squad: final"):
        assert cases[case] == 12, case


def test_what_matters_most_is_judged_first(source: Callable[..., Source]) -> None:
    held_out = Builder(source("eval"), PROMPTS, short)
    config = ColdStart(methods=METHODS, eval_cases=4, eval_negatives=1, eval_section=300)
    order = list(dict.fromkeys(e.case.replace(", nothing leads to it", "") for e in mix.evaluation(held_out, config)))
    place = {case: at for at, case in enumerate(order)}
    ranks = (
        ("hotpotqa: gold", "hotpotqa: none"),
        ("squad: gold", "unanswerable: none"),
        ("needles: gold", "chain: none"),
        ("random",),
        ("hotpotqa: final", "squad: final", "squad: final with recall"),
        ("hotpotqa: merge", "chain: merge"),
        ("hotpotqa: retention", "needles: retention"),
        ("hotpotqa: gold (cached order)", "unanswerable: none (cached order)"),
        ("hotpotqa: update", "squad: update"),
        ("needles: final with recall", "chain: final with recall", "needles: update"),
    )
    for first, then in pairwise(ranks):
        assert max(place[case] for case in first) < min(place[case] for case in then)
    assert max(place.values()) == max(at for case, at in place.items() if case.startswith("needles: recall"))


def test_sections_of_articles(builder: Builder) -> None:
    """The section's sentence where it answers, no elsewhere, the paragraph that an unanswerable question is about included."""
    for example in (builder.read("squad", "none") for _ in range(40)):
        prompt = builder.tokenizer.decode(example.prompt)
        (line,) = example.facts
        assert line.rpartition(": ")[2] in prompt
        assert text(builder, example) == f"<check>yes</check>\n{line}"
        assert example.answers[0] in line
    for kind in ("squad", "unanswerable"):
        for example in (builder.nothing(kind) for _ in range(20)):
            assert (text(builder, example), example.facts) == ("<check>no</check>", ())
    for example in (builder.final("unanswerable") for _ in range(20)):
        assert text(builder, example) == "\\boxed{unknown}"
    said = [text(builder, builder.final("squad")).removeprefix("\\boxed{").removesuffix("}") for _ in range(40)]
    assert sum(answer.startswith("in 15") for answer in said) + said.count("unknown") == len(said)
    assert said.count("unknown") < 10
    for example in (builder.gated("unanswerable") for _ in range(10)):
        step = gates(text(builder, example))
        assert step is not None
        assert (step.update, step.end) == (False, False)


def test_a_section_shows_what_an_unanswerable_question_asks_about(builder: Builder) -> None:
    made = [builder.nothing("unanswerable") for _ in range(40)]
    whole = 0
    for example in made:
        mill = example.question.split("mill ")[1].rstrip("?")
        whole += f"Mill {mill} stands by a river." in builder.tokenizer.decode(example.prompt)
    assert whole > 25


def test_a_set_that_is_not_here_is_named_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("examples: 8\n", encoding="utf-8")
    monkeypatch.setenv("PIMEM_HOME", str(tmp_path / "home"))
    with pytest.raises(DataError, match=r"fetch hotpotqa; .*fetch squad; .*fetch essays"):
        data.main([str(config), "--model", str(tmp_path), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_the_same_seed_makes_the_same_examples(source: Callable[..., Source]) -> None:
    def first(seed: int) -> list[bytes]:
        again = Builder(source(seed=seed), PROMPTS, short)
        return [e.prompt.tobytes() + e.response.tobytes() for e in islice(mix.examples(again, 20, METHODS), 20)]

    assert first(1) == first(1)
    assert first(1) != first(2)
