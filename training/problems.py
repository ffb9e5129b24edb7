"""Arithmetic word problems with worked steps. A problem is a start, one to three events and a question; each event has several
wordings. The held-out set uses wordings that training never shows (the last ones of each list), built from words that it does
show. data.py and evaluate.py call it."""
import words

HELD = 2  # wordings at the end of each list that only the held-out set uses

START = [
    '{A} has {n}.', '{A} owns {n}.', 'There are {n} in {A}\'s room.', '{A} starts with {n}.', '{A} collected {n} last week.',
    'At first {A} has {n}.', '{A} keeps {n} at home.', 'On Monday {A} has {n}.', '{A} counts {n} on the table.', 'In the morning {A} has {n}.',
    '{A} packed {n}.', '{A} has a collection of {n}.', 'Yesterday {A} had {n}.', '{A} brings {n} to school.',
    'Last week {A} had {n} at home.', 'At first there are {n} in {A}\'s collection.']
START_GROUPS = [
    '{A} has {k} with {m} in each.', '{A} fills {k} with {m} each.', 'There are {k} and each holds {m}. They belong to {A}.', '{A} buys {k} of {m} each.',
    '{A} has {k}. Each one contains {m}.', 'Every one of {A}\'s {k} holds {m}.', '{A} packs {m} into each of {k}.', '{A} owns {k}, and there are {m} in each.',
    '{A} carries {k} with {m} in every one.', '{A} puts {m} into each of {k}.', 'In {A}\'s room there are {k} with {m} each.',
    '{A} starts with {k} that hold {m} each.', '{A} counts {k}. Each of them has {m} in it.',
    'There are {m} in each of {A}\'s {k}.', '{A} brings {k}, and every one contains {m}.']
GAIN = [
    'Then {A} buys {x} more.', '{B} gives {A} {x} more.', '{A} finds {x} more.', 'Later {A} gets {x} more from {B}.', '{A} receives {x} as a gift.',
    'After that {A} picks up {x} more.', '{B} brings {x} for {A}.', '{A} wins {x} in a game.', 'Then {A} adds {x}.', '{B} hands {A} another {x}.',
    'The next day {A} gets another {x}.', '{A} makes {x} more.', 'A friend sends {A} {x}.', '{A} earns {x} more on Friday.', 'Then {x} more arrive for {A}.',
    '{A} takes {x} more from the shop.', 'Another {x} come from {B} for {A}.', 'On Friday {B} sends {A} {x} more.']
LOSS = [
    'Then {A} gives {x} to {B}.', '{A} loses {x}.', '{A} sells {x} of them.', 'Later {A} uses {x}.', '{A} throws away {x}.', 'Then {B} takes {x} away.',
    '{x} of them break.', '{A} gives away {x} of them.', 'After that {A} drops {x} of them and loses them.', '{A} sends {x} to {B}.',
    'The next day {A} sells {x}.', '{B} borrows {x} from {A}.', '{A} leaves {x} at school.', 'Then {A} hands {x} to {B}.', '{A} uses up {x} of them.',
    'Then {x} are lost.', 'Later {B} takes {x} from {A}.', 'On Friday {A} throws away {x} of them.']
TIMES = [
    'Then {A} gets {w} times as many.', 'A week later {A} has {w} times as many.', '{B} has {w} times as many as {A}. They look at {B}\'s.',
    'The number grows to {w} times as many.', 'After a month the number is {w} times as big.', 'Then {A} makes it {w} times as many.',
    'Soon {A} owns {w} times as many.', 'In the end there are {w} times as many.', 'By the summer {A} has {w} times that number.',
    'Soon the number is {w} times as big.', 'A month later there are {w} times as many.']
SHARE = [
    '{A} shares them equally among {g}.', 'Then {A} divides them equally among {g}.', 'They are split equally between {g}.', '{A} gives each of {g} the same number.',
    '{A} puts them into {g} of equal size.', 'All of them are shared equally by {g}.', 'Then {A} sorts them into {g}, the same number in each.',
    '{A} splits them into {g} with equal numbers.', 'Equal parts go to {g}.',
    'Then they are divided equally between {g}.', '{A} splits them equally among {g}.']
ASK_TOTAL = [
    'How many {i} does {A} have now?', 'How many {i} are there in the end?', 'How many {i} does {A} have in all?', 'What is the number of {i} now?',
    'How many {i} are left?', 'Find the number of {i} at the end.', 'How many {i} is that?', 'How many {i} does {A} own after that?', 'Count the {i}. How many are there?',
    'Now how many {i} are there?', 'What is the number of {i} in the end?']
ASK_SHARE = [
    'How many {i} are in each part?', 'How many {i} does each one get?', 'How many {i} go to each?', 'What does each get?', 'How many {i} is one share?',
    'How big is each share of {i}?', 'Find the number of {i} for each.',
    'How many {i} are in one share?', 'What is the number of {i} for each one?']
PRICE = [
    'One {s} costs {p} dollars. {A} buys {q}.', 'A {s} is sold for {p} dollars each. {A} takes {q}.', '{A} buys {q} for {p} dollars each.',
    'The price of a {s} is {p} dollars, and {A} wants {q}.', 'At the shop a {s} costs {p} dollars. {A} pays for {q}.', 'Each {s} costs {p} dollars. {A} gets {q}.',
    '{A} pays {p} dollars for each {s} and buys {q}.', 'In the market one {s} is {p} dollars. {A} picks {q}.',
    '{A} wants {q}. The price is {p} dollars each.', 'At the market {A} takes {q}. One {s} costs {p} dollars.']
CHANGE = [
    '{A} pays with {c} dollars. How much money does {A} get back?', 'How much is left of {c} dollars?', '{A} has {c} dollars. How many dollars are left after that?',
    '{A} gives the seller {c} dollars. What is the change in dollars?', 'If {A} had {c} dollars, how much money remains?', 'What change does {A} get from {c} dollars?',
    'How many dollars remain if {A} starts with {c} dollars?',
    '{A} had {c} dollars. How much is left?', '{A} pays with {c} dollars. What is the change?']
COST = [
    'How many dollars does {A} pay?', 'What is the cost in dollars?', 'How much money does {A} need?', 'How much does it cost in all?', 'Find the total price in dollars.',
    'How many dollars is that in all?', 'What does {A} pay?',
    'How much money is that?', 'What is the total in dollars?']
TRAVEL = [
    'A {v} travels {r} kilometers each hour for {h} hours.', '{A} drives a {v} for {h} hours at {r} kilometers an hour.', 'For {h} hours a {v} moves at {r} kilometers an hour.',
    'The {v} of {A} goes {r} kilometers an hour. It runs for {h} hours.', '{A} rides a {v} at {r} kilometers an hour. The trip takes {h} hours.',
    'Each hour the {v} goes {r} kilometers. It travels for {h} hours.',
    '{A} travels for {h} hours in a {v} that goes {r} kilometers an hour.', 'A {v} goes {r} kilometers each hour. The trip takes {h} hours.']
REST = [
    'Then it goes {x} kilometers more.', 'After that it travels another {x} kilometers.', 'Then {A} walks {x} kilometers.', 'Later there are {x} more kilometers to go.',
    'At the end {A} goes another {x} kilometers.',
    'After that {A} walks {x} more kilometers.', 'Then there are another {x} kilometers.']
ASK_DISTANCE = [
    'How many kilometers is that in all?', 'What is the total distance in kilometers?', 'How far does it go in kilometers?', 'Find the distance in kilometers.',
    'How many kilometers does it travel?', 'How long is the whole trip in kilometers?',
    'What is the whole distance in kilometers?', 'How many kilometers is the trip?']
VEHICLES = 'car train bus boat truck van bike scooter tram ferry'.split()
OPENINGS = ['', '', '', '', 'Solve this problem: ', 'Here is a problem. ', 'Please solve. ', 'Question: ']


def pick(rng, wordings, held_out):
    return rng.choice(wordings[-HELD:] if held_out else wordings[:-HELD])


class Problem:
    """Builds text and steps; every value stays a whole number below 1000."""

    def __init__(self, rng, held_out):
        self.rng, self.held_out = rng, held_out
        self.a, self.b = rng.sample(words.NAMES, 2)
        self.sentences, self.steps, self.value = [], [], 0

    def say(self, wordings, **parts):
        self.sentences.append(pick(self.rng, wordings, self.held_out).format(A=self.a, B=self.b, **parts))

    def step(self, sign, number):
        result = {'+': self.value + number, '-': self.value - number, '*': self.value * number, '/': self.value // number}[sign]
        self.steps.append(f'{self.value} {sign} {number} = {result}')
        self.value = result


def stock(problem):
    """Items that come and go."""
    rng, item = problem.rng, problem.rng.choice(words.ITEMS)
    if rng.random() < 0.45:
        count, each = rng.randint(2, 9), rng.randint(2, 40)
        problem.say(START_GROUPS, k=words.counted(count, rng.choice(words.CONTAINERS)), m=words.counted(each, item))
        problem.value = count
        problem.step('*', each)
    else:
        problem.value = rng.randint(2, 30) if rng.random() < 0.5 else rng.randint(10, 200)
        problem.say(START, n=words.counted(problem.value, item))
    shared = False
    for _ in range(rng.choice([1, 1, 2, 2, 3]) if not problem.steps else rng.choice([0, 1, 1, 2])):
        shared = event(problem, item)
        if shared:
            break
    problem.say(ASK_SHARE if shared else ASK_TOTAL, i=words.plural(item))


def event(problem, item):
    """One event; True if it ends the story with a share."""
    rng, value = problem.rng, problem.value
    kind = rng.random()
    divisors = [d for d in range(2, 10) if value % d == 0 and value // d >= 2]
    if kind < 0.15 and divisors:
        number = rng.choice(divisors)
        problem.say(SHARE, g=f'{number} {rng.choice(words.GROUPS)}')
        problem.step('/', number)
        return True
    if kind < 0.25 and 2 <= value <= 100:
        number = rng.randint(2, 9)
        problem.say(TIMES, w=number)
        problem.step('*', number)
    elif kind < 0.65 or value < 3:
        number = rng.randint(2, 99) if rng.random() < 0.7 else rng.randint(2, 200)
        problem.say(GAIN, x=number)
        problem.step('+', number)
    else:
        number = rng.randint(2, value - 1)
        problem.say(LOSS, x=number)
        problem.step('-', number)
    return False


def shopping(problem):
    rng = problem.rng
    item = rng.choice(words.ITEMS)
    problem.value = rng.randint(2, 30)
    count = rng.randint(2, 9)
    problem.say(PRICE, s=item, p=problem.value, q=words.counted(count, item))
    problem.step('*', count)
    if rng.random() < 0.5:
        paid = problem.value + rng.randint(1, 60)
        problem.say(CHANGE, c=paid)
        cost, problem.value = problem.value, paid
        problem.step('-', cost)
    else:
        problem.say(COST)


def travel(problem):
    rng = problem.rng
    problem.value = rng.randint(4, 90)
    hours = rng.randint(2, 9)
    problem.say(TRAVEL, v=rng.choice(VEHICLES), r=problem.value, h=hours)
    problem.step('*', hours)
    if rng.random() < 0.5:
        more = rng.randint(2, 99)
        problem.say(REST, x=more)
        problem.step('+', more)
    problem.say(ASK_DISTANCE)


def word_problem(rng, held_out=False):
    """(question, steps, answer)."""
    while True:
        problem = Problem(rng, held_out)
        rng.choices([stock, shopping, travel], [0.64, 0.2, 0.16])[0](problem)
        if problem.steps and 0 < problem.value < 1000:
            opening = '' if held_out else rng.choice(OPENINGS)
            return opening + ' '.join(problem.sentences), problem.steps, problem.value


def sum_question(rng):
    """Plain arithmetic: the drill behind the steps."""
    kind = rng.randrange(4)
    if kind == 0:
        left, right = rng.randint(1, 500), rng.randint(1, 499)
        sign, result = '+', left + right
    elif kind == 1:
        left = rng.randint(2, 999)
        right = rng.randint(1, left)
        sign, result = '-', left - right
    elif kind == 2:
        left, right = rng.randint(2, 99), rng.randint(2, 9)
        if rng.random() < 0.3:
            left, right = right, rng.randint(2, 40)
        sign, result = '*', left * right
    else:
        right, result = rng.randint(2, 9), rng.randint(2, 99)
        sign, left = '/', right * result
    return f'{left} {sign} {right}', result
