"""Wordings of the word problems, written for them. Each list of HELD_OUT is used by the held-out set alone; training
draws from the list of the same name in TRAINING, and puts one of OPENERS before an event. {A} and {B} are people,
{n}, {k}, {m}, {q} counted things, all other letters numbers or words. Used by problems.py; holds nothing else."""

OPENERS = ['', '', '', 'Then ', 'Later ', 'After that ', 'The next day ', 'On Friday ', 'On Sunday ', 'Soon ']
OPENERS += ['In the evening ', 'Next, ']
REQUESTS = ['', '', '', '', '', 'Solve this problem: ', 'Here is a problem. ', 'Please solve. ', 'Question: ']

TRAINING = {
    'start': '''{A} has {n}.|{A} owns {n}.|There are {n} in {A}'s room.|{A} starts with {n}.
{A} collected {n} last week.|At first {A} has {n}.|{A} keeps {n} at home.|On Monday {A} has {n}.
{A} counts {n} on the table.|In the morning {A} has {n}.|{A} packed {n}.|{A} has a collection of {n}.
Yesterday {A} had {n}.|{A} brings {n} to school.|There are {n} on {A}'s desk.|In {A}'s collection there are {n}.
Last week {A} counted {n}.|Last month {A} had {n}.|At first there were {n} at home.|{A} had {n} at first.
{A} finds {n} in a drawer.|A box of {A} holds {n}.|{A} made {n} at home.|This week {A} has {n}.
At the start {A} owns {n}.''',
    'groups': '''{A} has {k} with {m} in each.|{A} fills {k} with {m} each.
There are {k} and each holds {m}. They belong to {A}.|{A} buys {k} of {m} each.
{A} has {k}. Each one contains {m}.|Every one of {A}'s {k} holds {m}.|{A} packs {m} into each of {k}.
{A} owns {k}, and there are {m} in each.|{A} carries {k} with {m} in every one.|{A} puts {m} into each of {k}.
In {A}'s room there are {k} with {m} each.|{A} starts with {k} that hold {m} each.
{A} counts {k}. Each of them has {m} in it.|{A} brings {m} in each of {k}.
There are {m} in every one of the {k} that {A} has.|{A} brings {k} with {m} each.
Each of {A}'s {k} contains {m}.|{A} has {k}, and every one has {m} in it.
{k} stand in {A}'s room, and there are {m} in each of them.|{A} finds {k}. There are {m} in each.''',
    'gain': '''{A} buys {x} more.|{B} gives {A} {x} more.|{A} finds {x} more.|{A} gets {x} more from {B}.
{A} receives {x} as a gift.|{A} picks up {x} more.|{B} brings {x} for {A}.|{A} wins {x} in a game.|{A} adds {x}.
{B} hands {A} another {x}.|{A} gets another {x}.|{A} makes {x} more.|a friend sends {A} {x}.|{A} earns {x} more.
{x} more arrive for {A}.|{A} buys {x} more at the shop.|{B} sends {x} to {A}.|{B} gives {x} to {A}.
{A} takes {x} from {B}.|{A} takes another {x} from the shop.|another {x} come for {A}.|{x} more are found.
{A} borrows {x} from {B}.|another {x} are added.|{x} come from a friend for {A}.|{A} gets {x} from {B}.
{A} brings home {x} more.''',
    'loss': '''{A} gives {x} to {B}.|{A} loses {x}.|{A} sells {x} of them.|{A} uses {x}.|{A} throws away {x}.
{B} takes {x} away.|{x} of them break.|{A} gives away {x} of them.|{A} drops {x} of them and loses them.
{A} sends {x} to {B}.|{A} sells {x}.|{B} borrows {x} from {A}.|{A} leaves {x} at school.|{A} hands {x} to {B}.
{A} uses up {x} of them.|{x} of them are lost.|{B} gets {x} of them.|{B} takes {x} of them.
{A} throws {x} of them away.|{x} are broken.|{x} of them are thrown away.|{x} are sold.
{x} are taken away by {B}.|{B} buys {x} from {A}.|{A} gives {B} {x} of them.|a friend takes {x} from {A}.
{B} gets {x} from {A}.|{x} of the things are lost.''',
    'times': '''{A} gets {w} times as many.|A week later {A} has {w} times as many.
{B} has {w} times as many as {A}. They look at {B}'s.|The number grows to {w} times as many.
After a month the number is {w} times as big.|Then {A} makes it {w} times as many.
Soon {A} owns {w} times as many.|In the end there are {w} times as many.
By the summer {A} has {w} times that number.|The number gets {w} times as big.
A month later the number is {w} times as big.|A year later there are {w} times as many.
Now the number is {w} times that.|Then there are {w} times as many.''',
    'share': '''{A} shares them equally among {g}.|Then {A} divides them equally among {g}.
They are split equally between {g}.|{A} gives each of {g} the same number.|{A} puts them into {g} of equal size.
All of them are shared equally by {g}.|Then {A} sorts them into {g}, the same number in each.
{A} splits them into {g} with equal numbers.|Equal parts go to {g}.|{A} divides them equally between {g}.
They are shared equally among {g}.|Then {A} splits them equally between {g}.|They are divided into {g}.''',
    'ask_total': '''How many {i} does {A} have now?|How many {i} are there in the end?
How many {i} does {A} have in all?|What is the number of {i} now?|How many {i} are left?
Find the number of {i} at the end.|How many {i} is that?|How many {i} does {A} own after that?
Count the {i}. How many are there?|How many {i} are there now?|What number of {i} is there in the end?
In the end, how many {i} are there?|Now how many {i} does {A} have?''',
    'ask_share': '''How many {i} are in each part?|How many {i} does each one get?|How many {i} go to each?
What does each get?|How many {i} is one share?|How big is each share of {i}?|Find the number of {i} for each.
How many {i} are in each share?|What is the number of {i} in one part?|How many {i} for each one?''',
    'price': '''One {s} costs {p} dollars. {A} buys {q}.|A {s} is sold for {p} dollars each. {A} takes {q}.
{A} buys {q} for {p} dollars each.|The price of a {s} is {p} dollars, and {A} wants {q}.
At the shop a {s} costs {p} dollars. {A} pays for {q}.|Each {s} costs {p} dollars. {A} gets {q}.
{A} pays {p} dollars for each {s} and buys {q}.|In the market one {s} is {p} dollars. {A} picks {q}.
{A} takes {q}. Each costs {p} dollars.|{A} wants {q}. One {s} is {p} dollars.
{A} buys {q}. The price of one {s} is {p} dollars.
{A} picks {q} at the market. The price is {p} dollars for each {s}.
At the market one {s} costs {p} dollars. {A} gets {q}.''',
    'change': '''{A} pays with {c} dollars. How much money does {A} get back?|How much is left of {c} dollars?
{A} has {c} dollars. How many dollars are left after that?
{A} gives the seller {c} dollars. What is the change in dollars?|If {A} had {c} dollars, how much money remains?
What change does {A} get from {c} dollars?|How many dollars remain if {A} starts with {c} dollars?
{A} has {c} dollars. How much is left?|{A} had {c} dollars. What is left?
{A} pays with {c} dollars. Find the change.|{A} gives {c} dollars. What is the change?''',
    'cost': '''How many dollars does {A} pay?|What is the cost in dollars?|How much money does {A} need?
How much does it cost in all?|Find the total price in dollars.|How many dollars is that in all?
What does {A} pay?|How much is that?|What is the total?|How much money is it in all?|What is the total price?''',
    'travel': '''A {v} travels {r} kilometers each hour for {h} hours.
{A} drives a {v} for {h} hours at {r} kilometers an hour.|For {h} hours a {v} moves at {r} kilometers an hour.
The {v} of {A} goes {r} kilometers an hour. It runs for {h} hours.
{A} rides a {v} at {r} kilometers an hour. The trip takes {h} hours.
Each hour the {v} goes {r} kilometers. It travels for {h} hours.
A {v} goes {r} kilometers an hour. The trip of {A} takes {h} hours.
{A} travels in a {v} for {h} hours. It goes {r} kilometers each hour.
{A} travels in a {v} that goes {r} kilometers an hour. The trip takes {h} hours.
A {v} travels for {h} hours and goes {r} kilometers each hour.''',
    'rest': '''it goes {x} kilometers more.|it travels another {x} kilometers.|{A} walks {x} kilometers.
there are {x} more kilometers to go.|At the end {A} goes another {x} kilometers.|{A} goes {x} more kilometers.
another {x} kilometers follow.|{A} walks another {x} kilometers.''',
    'distance': '''How many kilometers is that in all?|What is the total distance in kilometers?
How far does it go in kilometers?|Find the distance in kilometers.|How many kilometers does it travel?
How long is the whole trip in kilometers?|How many kilometers are there in all?
What is the distance of the whole trip?|Find the whole distance in kilometers.
How many kilometers is the whole way?''',
}

HELD_OUT = {
    'start': '''Last week {A} had {n} at home.|At first there are {n} in {A}'s collection.''',
    'groups': '''There are {m} in each of {A}'s {k}.|{A} brings {k}, and every one contains {m}.''',
    'gain': '''{A} takes {x} more from the shop.|Another {x} come from {B} for {A}.
On Friday {B} sends {A} {x} more.''',
    'loss': '''Then {x} are lost.|Later {B} takes {x} from {A}.|On Friday {A} throws away {x} of them.''',
    'times': '''Soon the number is {w} times as big.|A month later there are {w} times as many.''',
    'share': '''Then they are divided equally between {g}.|{A} splits them equally among {g}.''',
    'ask_total': '''Now how many {i} are there?|What is the number of {i} in the end?''',
    'ask_share': '''How many {i} are in one share?|What is the number of {i} for each one?''',
    'price': '''{A} wants {q}. The price is {p} dollars each.
At the market {A} takes {q}. One {s} costs {p} dollars.''',
    'change': '''{A} had {c} dollars. How much is left?|{A} pays with {c} dollars. What is the change?''',
    'cost': '''How much money is that?|What is the total in dollars?''',
    'travel': '''{A} travels for {h} hours in a {v} that goes {r} kilometers an hour.
A {v} goes {r} kilometers each hour. The trip takes {h} hours.''',
    'rest': '''After that {A} walks {x} more kilometers.|Then there are another {x} kilometers.''',
    'distance': '''What is the whole distance in kilometers?|How many kilometers is the trip?''',
}


def lists(wordings):
    return {kind: text.replace('\n', '|').split('|') for kind, text in wordings.items()}


TRAINING, HELD_OUT = lists(TRAINING), lists(HELD_OUT)


def without_opener(sentence):
    """The sentence as a comparison sees it: no opener, no capitals."""
    for opener in sorted(OPENERS, key=len, reverse=True):
        if opener and sentence.startswith(opener):
            sentence = sentence[len(opener) :]
            break
    return sentence.lower()


def shown_in_training():
    """Held-out wordings that training shows too, with or without an opener: there must be none."""
    seen = {without_opener(wording) for wordings in TRAINING.values() for wording in wordings}
    return [wording for wordings in HELD_OUT.values() for wording in wordings if without_opener(wording) in seen]
