"""Made-up facts for planting into prose: sentences, natural questions about them, and short answers.

Names of people and towns are made up apart for training and evaluation; things and places are shared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# sentence | question | answer; a name in braces is filled in the same way throughout.
_PATTERNS = """
The {thing} hangs behind the {thing2}.|Where does the {thing} hang?|behind the {thing2}
The {thing} is kept in the {place}.|Where is the {thing} kept?|in the {place}
{name} left the {thing} in the {place}.|Where did {name} leave the {thing}?|in the {place}
{name} hid the {thing} under the {thing2}.|What did {name} hide under the {thing2}?|the {thing}
The {thing} in the {place} was repaired by {name}.|Who repaired the {thing} in the {place}?|{name}
The code of the {place} door is {code}.|What is the code of the {place} door?|{code}
The password for the {thing} is {word}.|What is the password for the {thing}?|{word}
{name} was appointed keeper of the {place} in {year}.|When was {name} appointed keeper of the {place}?|{year}
{name} painted the {place} {colour}.|What colour did {name} paint the {place}?|{colour}
The meeting about the {thing} takes place on {day} at {time}.|When does the meeting about the {thing} take place?|{day} at {time}
The {thing} costs {number} crowns.|How much does the {thing} cost?|{number} crowns
{name} bought {number} of the {thing}s at the market.|How many {thing}s did {name} buy at the market?|{number}
{name}'s favourite dish is {dish}.|What is {name}'s favourite dish?|{dish}
{name} works as a {job} in {town}.|What does {name} work as?|a {job}
{name} works as a {job} in {town}.|In which town does {name} work?|{town}
The {job} of {town} is called {name}.|What is the {job} of {town} called?|{name}
{name} is the sister of {name2}.|Who is the sister of {name2}?|{name}
The train to {town} leaves from platform {digit} at {time}.|From which platform does the train to {town} leave?|platform {digit}
The train to {town} leaves from platform {digit} at {time}.|When does the train to {town} leave?|{time}
The {place} was built in {year} by {name}.|Who built the {place}?|{name}
The {place} was built in {year} by {name}.|In which year was the {place} built?|{year}
Only {name} knows how to open the {thing}.|Who knows how to open the {thing}?|{name}
The {thing} belongs to {name}.|Whom does the {thing} belong to?|{name}
The {thing} was found by {name} near {town}.|Where was the {thing} found?|near {town}
In an emergency, call {name} at {code}.|Whom should one call in an emergency?|{name}
In an emergency, call {name} at {code}.|Which number should one call in an emergency?|{code}
{name} keeps the {thing} locked in drawer {digit}.|In which drawer does {name} keep the {thing}?|drawer {digit}
The valve beside the {thing} must be closed before {time}.|By when must the valve beside the {thing} be closed?|{time}
The old name of {town} was {word}.|What was the old name of {town}?|{word}
The budget of the {place} is {number} thousand crowns.|How large is the budget of the {place}?|{number} thousand crowns
The ship {word} sank off {town} in {year}.|Which ship sank off {town}?|{word}
The ship {word} sank off {town} in {year}.|When did the ship {word} sink?|{year}
{name} swapped the {thing} for a {thing2}.|What did {name} swap the {thing} for?|a {thing2}
The cat of the {job} is named {word}.|What is the cat of the {job} named?|{word}
The error on machine {code} was caused by a loose {thing}.|What caused the error on machine {code}?|a loose {thing}
Server {word} was restarted at {time} by {name}.|When was server {word} restarted?|{time}
Server {word} was restarted at {time} by {name}.|Who restarted server {word}?|{name}
The contract with {town} ends on {day}, {year}.|When does the contract with {town} end?|{day}, {year}
The {thing} weighs {number} grams.|How much does the {thing} weigh?|{number} grams
{name} speaks {number} languages and lives in {town}.|Where does {name} live?|{town}
Dinner in the {place} is served at {time}.|At what time is dinner served in the {place}?|{time}
The treasure map was drawn on a piece of {colour} cloth by {name}.|Who drew the treasure map?|{name}
Delivery {code} goes to the {place} in {town}.|Where does delivery {code} go?|the {place} in {town}
The key to the {place} is inside the {thing}.|Where is the key to the {place}?|inside the {thing}
The winner of the {year} {town} race was {name}.|Who won the {year} {town} race?|{name}
"""  # noqa: E501
_LISTS = {
    kind: [word.strip() for word in words.replace("\n", " ").split(",")]
    for kind, words in {
        "thing": """spare key, barometer, red ladder, silver teapot, violin, copper kettle, brass lamp, blue umbrella, lantern,
compass, sewing box, old radio, wooden flute, globe, pocket watch, oak chest, fishing rod, telescope, toolbox,
glass vase, ledger, first-aid kit, garden hose, typewriter, clay jug, bicycle pump, sundial, chess set,
projector, fire blanket, mirror, music box, iron bell, map case, snow shovel, leather bag, microscope, paper
lantern, stone owl, tin whistle, camera, hammer, notebook, oil can, rocking chair, candle holder""",
        "place": """boathouse, cellar, library, attic, greenhouse, chapel, workshop, north tower, pantry, stable, lighthouse,
pump room, archive, bakery, observatory, mill, gatehouse, laundry, ballroom, orangery, clinic, signal box, granary,
town hall, dairy, school, ferry house, smithy, wine cellar, engine room, music room, museum, clock tower, dock
office, tea house, vault""",
        "colour": """red, dark green, pale blue, yellow, white, grey, orange, violet, black, turquoise, brown, pink""",
        "job": """gardener, baker, harbour master, clockmaker, nurse, teacher, blacksmith, postman, carpenter, cook, librarian,
miller, engineer, tailor, beekeeper, glazier, surveyor, pilot, printer, cooper, organist, watchman""",
        "dish": """lentil soup, plum cake, fried trout, onion pie, barley stew, apple dumplings, mushroom rice, cheese pancakes,
roast pumpkin, pickled herring, bean salad, ginger bread, leek tart, potato soup""",
        "day": """Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, 3 March, 17 May, 24 June, 9 August, 30
September, 12 October, 1 November, 19 December, 6 January, 28 February, 14 April""",
    }.items()
}
_FIRST, _START, _MIDDLE, _END = (
    words.split()
    for words in (
        """Ada Boris Clara Dario Edda Felix Greta Hugo Ines Jonas Karin Leo Mira Nils Olga Pavel Rosa Sven Tilda Uwe Vera
Wim Yara Zeno Marta Emil Lina Oskar Petra Anton Freya Ivan Nora Tomas Selma Ruben""",
        """Al Bor Cas Dun El Fen Gar Hol Ing Jor Kal Lin Mar Nor Ost Pel Quin Ros Sil Tor Ul Ver Wes Yar Zel Bren Hal
Stan""",
        "a e i o u er an il en ov in",
        "burg dal feld sen mark ton wick berg son ven holm stein ley ster nau dorf by more",
    )
)


@dataclass(frozen=True)
class Fact:
    """A sentence, a question that it answers, and the answer."""

    sentence: str
    question: str
    answer: str
    pattern: int


_SLOTS = "name name2 thing thing2 place colour job dish day town word code year time number digit".split()  # noqa: SIM905
PATTERNS = [tuple(line.split("|")) for line in _PATTERNS.strip().splitlines()]


def draw(rng: np.random.Generator, part: str, pattern: int | None = None) -> Fact:
    """A fact of `part` (train or eval), of the pattern with this number where one is given."""
    number = int(rng.integers(len(PATTERNS))) if pattern is None else pattern
    fills = {
        slot: _fill(slot.rstrip("2"), rng, part) for slot in ("name", "name2", "thing", "thing2", "place", "colour", "job")
    }
    fills |= {
        slot: _fill(slot, rng, part) for slot in ("dish", "day", "town", "word", "code", "year", "time", "number", "digit")
    }
    sentence, question, answer = (text.format(**fills) for text in PATTERNS[number])
    return Fact(sentence[0].upper() + sentence[1:], question, answer, number)


def _fill(kind: str, rng: np.random.Generator, part: str) -> str:
    if kind in _LISTS:
        return _LISTS[kind][int(rng.integers(len(_LISTS[kind])))]
    if kind == "code":
        return ("", "K-", "A", "7")[int(rng.integers(4))] + "".join(map(str, rng.integers(0, 10, rng.integers(3, 7))))
    if kind == "year":
        return str(rng.integers(1500, 2030))
    if kind == "time":
        return f"{rng.integers(0, 24)}:{rng.integers(0, 60):02}"
    if kind == "number":
        return str(rng.integers(2, 5000))
    if kind == "digit":
        return str(rng.integers(1, 30))
    # Made-up names: even sums of syllable numbers are those of training, odd ones those of evaluation.
    while True:
        a, b, c = int(rng.integers(len(_START))), int(rng.integers(len(_MIDDLE))), int(rng.integers(len(_END)))
        if (a + b + c) % 2 == (part == "eval"):
            break
    made = _START[a] + _MIDDLE[b] + _END[c]
    return f"{_FIRST[int(rng.integers(len(_FIRST)))]} {made}" if kind == "name" else made


def log_line(rng: np.random.Generator, part: str) -> str:
    """A line of a dull record, to plant facts among."""
    name, place, thing = (_fill(kind, rng, part) for kind in ("name", "place", "thing"))
    time, number = _fill("time", rng, part), _fill("number", rng, part)
    return str(
        rng.choice(
            [
                f"At {time} {name} walked through the {place} and noted nothing unusual.",
                f"{name} checked the pressure, which stood at {number} units.",
                f"The wind turned at {time}, and the watch was changed.",
                f"A delivery arrived for the {place}; {name} signed for it.",
                f"{name} and {_fill('name', rng, part)} talked about the weather for a while.",
                f"Entry {number}: the {thing} was cleaned as on every other day.",
                f"Somebody asked about the {thing}, but nobody in the {place} answered.",
                f"It rained until {time}. The road to {_fill('town', rng, part)} stayed open.",
                f"{name} counted {number} steps and went back to the {place}.",
                f"The lamps were lit at {time} and put out before midnight.",
                f"[{time}] routine check {number} finished without remarks.",
                f"Nothing was heard from {_fill('town', rng, part)} today.",
            ]
        )
    )
