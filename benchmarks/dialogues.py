"""Generate long conversations between two people with a fixed seed, and questions about them.

Scenes recur with other details, other speakers and weeks later, so that most words of a question occur in
many turns. The turn with the answer often repeats few of them, as in real conversations.
"""

# ruff: noqa: E501  a line of a scene is one line

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

CONVERSATIONS = 10
SESSIONS = 20
SCENES = 4
SEED = 20261123

PEOPLE = [
    ("Amara", "Jonas"), ("Beatriz", "Callum"), ("Dmitri", "Esther"), ("Farah", "Gustav"), ("Hana", "Ivo"),
    ("Keiko", "Lorenzo"), ("Mireille", "Nolan"), ("Odile", "Pavel"), ("Quentin", "Ruth"), ("Sanjay", "Thea"),
]  # fmt: skip
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()  # noqa: SIM905

# A scene: its variable parts (the first distinguishes scenes of one kind), the lines of A (`<`) and B (`>`),
# `!` for the turn with the answer, and the later question.
SCENES_OF = """
craft=pottery|watercolour|woodcarving|weaving|calligraphy|glass blowing ; thing=a lopsided bowl|a heron|a spoon|a grey scarf|a birthday card|a paperweight ; teacher=an old sailor|a retired judge|her cousin|a shy student
< Guess what, I finally signed up for a {craft} class!
> No way! You have talked about {craft} for ages. How was it?
!< Loved it. The first thing I made in {craft} was {thing}, a bit wonky but mine.
> Ha, the first one always is. Who runs it?
!< The {craft} class is taught by {teacher}, very patient with all of us.
? What was the first thing that {A} made after taking up {craft}?
? Who was the person teaching the {craft} class that {A} went to?

pet=puppy|kitten|tortoise|parrot|hamster|goat ; name=Biscuit|Pepper|Moses|Clementine|Waffles|Duchess ; habit=chewing slippers|sleeping in the sink|hiding under the stove|stealing spoons
< We have a new member of the family: a {pet}!
> Oh my, pictures please! What did you call it?
!< The kids named the {pet} {name}. I was against it, nobody listened.
> Adorable. Does it behave?
!< Not at all, it keeps {habit} whenever we leave the room.
? What name did the family of {A} choose for the new {pet}?
? What bad habit does the {pet} of {A} have when nobody is watching?

place=Lisbon|Kyoto|Tromso|Marrakesh|Quito|Tbilisi ; with=my sister|two colleagues|my godfather|an old school friend ; best=the tiled staircases|a night market|the northern lights|a rooftop breakfast|the cable car|sulphur baths
< I am just back from {place}, what a trip.
> Jealous! Did you travel alone?
!< No, {with} came along to {place}, we shared the driving.
> And the highlight?
!< What I enjoyed most in {place} was {best}. I could have stayed all night.
? Who went along with {A} on the journey to {place}?
? Which part of the trip to {place} did {A} enjoy the most?

job=bakery|hospital|publishing house|shipyard|law firm|aquarium ; role=night shifts|the accounts|proofreading|training newcomers|the front desk ; pay=cycle to work|see the children at noon|leave at four|learn Danish
< News: I got the job at the {job}!
> Congratulations, you deserve it. What will you do there?
!< At the {job} I take care of {role} in the beginning, later we will see.
> Sounds good. Anything you look forward to?
!< That I can {pay}. It was the reason I accepted.
? What kind of tasks does {A} take care of at the {job}?
? Why did {A} accept the offer from the {job}?

sport=half marathon|triathlon|rowing regatta|climbing contest|chess tournament|swim across the lake ; result=came in last|finished seventh|won a cheese|had to give up|beat my brother ; train=before sunrise|with an app|twice a week|on the office stairs
< The {sport} was on Sunday, I am still aching.
> You actually did it! How did it go?
!< Well, in the {sport} I {result}, and I was grinning all the way home.
> How long had you been training?
!< I have been preparing for the {sport} since spring, always {train}.
? How did the {sport} turn out for {A}?
? In which way did {A} prepare for the {sport}?

dish=lasagne|borscht|pad thai|tamales|paella|dumplings ; secret=a spoon of cocoa|smoked salt|pickled lemon|a splash of cider|stale bread ; guest=the neighbours|my boss|the choir|an exchange student
< I cooked {dish} yesterday, a mountain of it.
> Yum, is that the recipe of your aunt?
!< Hers, but {secret} goes into my {dish}, that is the secret. Do not tell her.
> My lips are sealed. Who got to eat it?
!< {guest} came round, there was nothing left in the end.
? Which secret ingredient goes into the {dish} that {A} cooks?
? For whom had {A} prepared {dish} that evening?

illness=broken wrist|migraine|back pain|hay fever|concussion|sprained ankle ; cure=swimming|acupuncture|a herbal tea|a new pillow|plain rest ; when=on the ice|in the garden|while moving a piano|on the tram
< Sorry that I was silent, I had a {illness}.
> Oh no! What happened?
!< The {illness} started {when}, of all places, and got worse by the evening.
> Are you better now?
!< Yes, what helped in the end was {cure}; the doctor just shrugged.
? Where was {A} when the trouble with the {illness} started?
? How did {A} get over the {illness}?

book=a novel about lighthouse keepers|a biography of a botanist|a history of salt|a thriller set in Oslo|poems by a coal miner|a guide to moss ; from=the flea market|my dentist|a train seat|the library sale ; feel=cried on the bus|missed my stop|laughed out loud|could not sleep
< I am reading {book} at the moment.
> Sounds unusual. How did you come across that?
!< I got {book} from {from}, the cover caught my eye.
> And is it any good?
!< Reading it had an effect: I {feel} yesterday.
? Where did {A} get hold of {book}?
? What effect did reading {book} have on {A}?

instrument=cello|accordion|drums|harmonica|oboe|ukulele ; piece=a tango|the Swan|a sea shanty|something by Satie|Happy Birthday ; where=in the cellar|at the station|in church|for the goldfish
< My {instrument} arrived, I have been practising every day.
> Wow! Can you play something already?
!< On the {instrument} only {piece}, slowly, and with many mistakes.
> Your poor neighbours.
!< I practise the {instrument} {where}, so nobody complains.
? Which piece of music can {A} play on the {instrument}?
? In what place does {A} practise the {instrument} so that no one gets annoyed?

house=kitchen|attic|bathroom|balcony|hallway|greenhouse ; colour=sage green|mustard|pale pink|navy|brick red ; found=a wasps' nest|newspapers from 1931|a hidden door|somebody's love letters
< We began to renovate the {house} this week, dust everywhere.
> Brave! What colour will it get?
!< For the {house} we decided on {colour} after a long fight.
> Any surprises behind the walls?
!< You will not believe what the {house} had: {found}. I took photos.
? What colour did {A} decide on for the {house}?
? What was discovered when {A} renovated the {house}?

child=son|daughter|nephew|niece|stepson|goddaughter ; dream=an astronaut|a beekeeper|a referee|a puppeteer|a judge ; event=school play|spelling bee|science fair|summer camp
< My {child} had such a proud day on Friday.
> Tell me! What was it?
!< The {event}, and a big round of applause at the end.
> Lovely. Still set on the same profession?
!< No, this month my {child} wants to become {dream}. Last month a dinosaur.
? At which event did the {child} of {A} earn the applause?
? What would the {child} of {A} like to become one day?

car=old van|scooter|cargo bike|convertible|tractor|canoe ; fault=the brakes|a rusty chain|the battery|a leak|the left mirror ; price=three hundred|a case of wine|nothing at all|half of what I feared
< My {car} broke down again on the way home.
> Again? What is it this time?
!< With the {car} it is {fault} that went wrong. The mechanic only sighed.
> Was it expensive?
!< He took {price} for it, so I cannot complain.
? What had gone wrong with the {car} belonging to {A}?
? How much did {A} pay to have the {car} repaired?

charity=food bank|animal shelter|beach clean-up|refugee centre|hospice|repair cafe ; day=Tuesdays|Saturday mornings|every other Thursday|Sundays after lunch ; why=my grandfather|a film that I saw|a flyer|guilt, honestly
< I have started to volunteer at the {charity}.
> That is wonderful. When do you find the time?
!< I help at the {charity} on {day}, it fits between everything else.
> What made you begin?
!< It was because of {why}. I wanted to give something back.
? On which days does {A} help out at the {charity}?
? What inspired {A} to volunteer for the {charity}?

plant=lemon tree|orchid|sunflowers|pumpkins|bonsai|ferns ; problem=greenfly|slugs|too little light|the cat|frost ; fix=garlic water|a lamp|coffee grounds|talking to it
< Look at the {plant} in my window, I am so worried.
> Poor thing, it droops. What is the matter with it?
!< The {plant} is harmed by {problem}. It went downhill within a week.
> Have you tried anything?
!< To rescue it I tried {fix}, and there is a new leaf since Monday!
? What is harming the {plant} that {A} grows?
? What did {A} try in order to rescue the {plant}?

course=sign language|Italian|astronomy|welding|beekeeping|first aid ; buddy=my mother in law|the postman|a former rival|my landlord ; exam=in a fortnight|right after Easter|on my birthday|when the snow is gone
< Tonight was the first lesson of the {course} course.
> Exciting! Do you know anybody there?
!< You will laugh, in the {course} course {buddy} sat right beside me.
> Small world. Is there a test at the end?
!< The {course} test is {exam}, I should get going.
? Whom did {A} know in the {course} course already?
? When will {A} sit the test for the {course} course?

party=fortieth birthday|wedding|housewarming|retirement party|graduation|silver anniversary ; gift=a telescope|a hammock|a pasta machine|concert tickets|a cactus ; mishap=the cake slid off the table|it poured with rain|the band never came|someone locked the cellar
< The {party} on Saturday was quite something.
> I saw the pictures! Did they like your present?
!< Very much. For the {party} I gave {gift}, wrapped in an old map.
> Everything went well then?
!< Not quite: {mishap}, and everybody still talks about it.
? What present did {A} give for the {party}?
? What went wrong during the {party} that {A} attended?

phobia=spiders|heights|lifts|public speaking|deep water|thunder ; cause=an uncle's prank|a school trip|a film at the age of six|a night in a tent ; step=a therapist|breathing slowly|counting backwards|a rubber band on the wrist
< I have never told you, I am terribly afraid of {phobia}.
> Really? Since when?
!< My fear of {phobia} goes back to {cause}, I remember every second.
> Do you do something about it?
!< When I get scared these days, {step} helps me deal with it.
? What caused {A} to be scared of {phobia}?
? How does {A} deal with the fear of {phobia}?

film=silent western|documentary on whales|French comedy|horror series|cartoon about onions|spy film ; seat=in the open air|on a plane|at an all-night screening|under three blankets ; verdict=fell asleep|want the soundtrack|hated the ending|watched it twice
< Finally saw that {film} everybody talks about.
> Where did they show it?
!< I watched the {film} {seat}, which is the best way if you ask me.
> And, worth it?
!< Put it like this: I {verdict}.
? In what circumstances did {A} watch the {film}?
? What did {A} think about the {film}?

move=flat|cottage|houseboat|studio|farm|basement ; reason=the rent doubled|of the noise|the twins need a room|I can work from anywhere ; view=a canal|a prison wall|vineyards|the fish market
< It is official, we are moving to a {move} next month.
> What? I thought you were happy where you are.
!< We were, but {reason}, so we are leaving for the {move}.
> Is it at least a nice spot?
!< From its bedroom you see {view}. I am getting used to the idea.
? For what reason is {A} leaving for a {move}?
? What can be seen from the bedroom of the {move} that {A} moves to?

collect=stamps|fountain pens|beer mats|snow globes|tin soldiers|postcards ; count=forty|a hundred and two|almost a thousand|nineteen ; rare=one from Tannu Tuva|a forgery|one without a maker's name|one signed by a bishop
< I spent the weekend sorting my {collect}.
> How many do you own by now?
!< I own {count} {collect}, not bad for a beginner.
> Do you have a favourite?
!< Of course: {rare}. It stays in a drawer of its own.
? How many {collect} does {A} have altogether?
? Which one is the most cherished among the {collect} of {A}?

start=podcast|bakery stall|newsletter|online shop|language school|puppet theatre ; topic=forgotten villages|bread without wheat|night trains|second-hand kilts|proverbs ; money=savings|a small grant|an inheritance|friends and family
< I did it, my own {start} goes live tomorrow!
> That is huge. What is it all about?
!< The {start} is all about {topic}, nobody else covers that.
> How do you finance it?
!< The money comes from {money}, and I keep my expenses low.
? What is the {start} founded by {A} about?
? Where does the money for the {start} of {A} come from?

weather=storm|heat wave|flood|blizzard|hail|fog ; damage=the fence|our roof|the beehives|two windows|the tomato beds ; help=the fire brigade|a stranger with a saw|the whole street|my ex-husband
< You must have heard about the {weather} here.
> I did! Is everybody all right?
!< We are, but the {weather} took {damage}. It sounded like a train.
> Who helped you clear up?
!< After the {weather} {help} turned up within the hour, I was speechless.
? What got destroyed at the home of {A} by the {weather}?
? Who lent a hand to {A} after the {weather}?

diet=sugar|coffee|meat|alcohol|social media|the late news ; length=eleven weeks|since Lent|exactly a year|six days and counting ; swap=chicory|long walks|knitting|pistachios
< I have given up {diet}, you know.
> Respect. How long has it been?
!< Without {diet} for {length} today, I cross the days off.
> What do you do when you are tempted?
!< {swap}, honestly. It is a poor swap but it works.
? For how much time has {A} been living without {diet}?
? What does {A} take instead of {diet}?

friend=Marguerite|Tobiasz|Ngozi|old Henrik|Professor Abel|little Xenia ; met=at a bus strike|in a choir|through a wrong number|at the dentist ; now=drives a taxi|paints murals|teaches physics|keeps ostriches
< I ran into {friend} at the market today.
> {friend}! How do you two know each other again?
!< {friend} and I met {met}, many years ago.
> What is {friend} up to?
!< {friend} {now} these days, and is happier than ever.
? How did {A} and {friend} get to know one another?
? What does {friend}, the acquaintance of {A}, do for a living?
"""
OPENINGS = [
    "Hey {B}, long time no see! How have you been?", "Hi {B}! I hope the week treated you well.",
    "Good to hear from you, {B}. A lot has happened here.", "{B}! I was just thinking about you.",
]  # fmt: skip
ASIDES = [
    "That makes me so happy for you.", "Wow, I would never have dared that.", "Keep me posted, will you?",
    "You always have the best stories.", "I know what you mean, it was the same with me last year.",
    "By the way, the photos you sent are gorgeous.", "We should do that together some time.",
    "Honestly, I needed to hear that today.", "It is the small things that keep us going, isn't it?",
    "My week was dull in comparison, mostly work and laundry.",
]  # fmt: skip
CLOSINGS = [
    "Talk soon, take care!",
    "I have to run, the kids are calling. Bye!",
    "Sleep well, hugs to all of you.",
]


class Utterance(NamedTuple):
    """A turn: its id, speaker, time and text."""

    id: str
    head: str
    text: str


class DialogueQuestion(NamedTuple):
    """A question, and the turn that answers it."""

    text: str
    evidence: str


class Scene(NamedTuple):
    """A template of lines and questions."""

    slots: dict[str, list[str]]
    lines: list[str]
    questions: list[str]


def load_scenes() -> list[Scene]:
    """Return all scenes."""
    found = []
    for block in SCENES_OF.strip().split("\n\n"):
        head, *lines = block.splitlines()
        slots = {
            name.strip(): values.split("|")
            for name, _, values in (part.strip().partition("=") for part in head.split(" ; "))
        }
        found.append(
            Scene(
                slots,
                [line for line in lines if not line.startswith("?")],
                [line[2:] for line in lines if line.startswith("?")],
            )
        )
    return found


def generate_dialogues(
    count: int = CONVERSATIONS,
) -> Iterator[tuple[list[list[Utterance]], list[DialogueQuestion]]]:
    """Yield the sessions of each conversation, and the questions about it."""
    dice = random.Random(SEED)
    for people in PEOPLE[:count]:
        yield generate_dialogue(dice, people)


def generate_dialogue(
    dice: random.Random, people: Sequence[str]
) -> tuple[list[list[Utterance]], list[DialogueQuestion]]:
    """Return one conversation: a scene recurs with other details, each of them once."""
    known = load_scenes()
    pool = [
        (scene, first, who)
        for scene, who in product(known, (0, 1))
        for first in next(iter(scene.slots.values()))
    ]
    dice.shuffle(pool)
    sessions, questions, used = list[list[Utterance]](), list[DialogueQuestion](), set[tuple[str, str]]()
    for session in range(1, SESSIONS + 1):
        date = f"{dice.randint(1, 28)} {MONTHS[(session // 2) % 12]} {2024 + session // 24}"
        turns = list[Utterance]()

        def add_turn(
            speaker: str, text: str, session: int = session, date: str = date, turns: list[Utterance] = turns
        ) -> str:
            id_ = f"{session}:{len(turns) + 1}"
            turns.append(Utterance(id_, f"{speaker}, {date}", text[:1].upper() + text[1:]))
            return id_

        add_turn(people[0], dice.choice(OPENINGS).format(B=people[1]))
        for _ in range(SCENES):
            scene, first, who = pool.pop()
            while (first, people[who]) in used or (
                (first, people[1 - who]) in used and dice.random() < 1 / 2
            ):
                scene, first, who = pool.pop()
            used.add((first, people[who]))
            values = {name: dice.choice(choices) for name, choices in scene.slots.items()}
            values |= {next(iter(scene.slots)): first, "A": people[who], "B": people[1 - who]}
            answers = []
            for line in scene.lines:
                speaker = people[who if "<" in line[:2] else 1 - who]
                id_ = add_turn(speaker, line.lstrip("!<> ").format(**values))
                answers += [id_] if line.startswith("!") else []
            if dice.random() < 1 / 2:
                add_turn(dice.choice(people), dice.choice(ASIDES))
            pairs = zip(scene.questions, answers, strict=True)
            questions += [DialogueQuestion(question.format(**values), id_) for question, id_ in pairs]
        add_turn(dice.choice(people), dice.choice(CLOSINGS))
        sessions.append(turns)
    return sessions, questions
