"""Arithmetic word problems with worked steps. A problem is a start, one to three events and a question; each event
has several wordings. The held-out set uses wordings that training never shows (wordings.py), built from words that it
does show. A step with a number of three digits is worked column by column, from the right, so that every fact in it
is a small one. data.py and evaluate.py call it."""

import words
from wordings import HELD_OUT, OPENERS, REQUESTS, TRAINING

VEHICLES = 'car train bus boat truck van bike scooter tram ferry'.split()
WORKED_FROM = 100  # sums with a number of at least this are worked in columns


# ---- steps -------------------------------------------------------------------------------------------------


def columns_of_sum(left, right):
    """247 + 386: '7+6=13 4+8+1=13 2+3+1=6'."""
    shown, carry, rest = [], 0, (left, right)
    while any(rest):
        digits = [number % 10 for number in rest if number]
        terms = digits + [carry] * (carry > 0)
        carry, rest = sum(terms) // 10, tuple(number // 10 for number in rest)
        shown.append('+'.join(map(str, terms)) + (f'={sum(terms)}' if len(terms) > 1 else ''))
    return ' '.join(shown)


def columns_of_difference(left, right):
    """302 - 87: '12-7=5 10-8-1=1 3-1=2'; the 1 that is taken at last is what the column before has borrowed."""
    shown, borrow = [], 0
    while left:
        taken = [right % 10] * (right > 0) + [1] * borrow
        digit = left % 10
        left, right, borrow = left // 10, right // 10, int(sum(taken) > digit)
        digit += 10 * borrow
        shown.append('-'.join(map(str, [digit, *taken])) + (f'={digit - sum(taken)}' if taken else ''))
    return ' '.join(shown)


def worked(left, sign, right):
    """One step as it is written, and its result."""
    result = {'+': left + right, '-': left - right, '*': left * right, '/': left // right}[sign]
    if sign in '*/' or max(left, right) < WORKED_FROM:
        return f'{left} {sign} {right} = {result}', result
    columns = (columns_of_sum if sign == '+' else columns_of_difference)(left, right)
    return f'{left} {sign} {right} ({columns}) = {result}', result


# ---- stories -----------------------------------------------------------------------------------------------


class Problem:
    """Builds text and steps; every value stays a whole number below 1000."""

    def __init__(self, rng, held_out):
        self.rng, self.wordings = rng, HELD_OUT if held_out else TRAINING
        self.openers = [''] if held_out else OPENERS
        self.a, self.b = rng.sample(words.NAMES, 2)
        self.sentences, self.steps, self.value = [], [], 0

    def say(self, kind, **parts):
        wording = self.rng.choice(self.wordings[kind])
        if kind in ('gain', 'loss', 'rest') and not wording[0].isupper():
            wording = self.rng.choice(self.openers) + wording
        text = wording.format(A=self.a, B=self.b, **parts)
        self.sentences.append(text[0].upper() + text[1:])

    def step(self, sign, number):
        text, self.value = worked(self.value, sign, number)
        self.steps.append(text)


def stock(problem):
    """Items that come and go."""
    rng, item = problem.rng, problem.rng.choice(words.ITEMS)
    if rng.random() < 0.45:
        count, each = rng.randint(2, 9), rng.randint(2, 40)
        problem.say('groups', k=words.counted(count, rng.choice(words.CONTAINERS)), m=words.counted(each, item))
        problem.value = count
        problem.step('*', each)
    else:
        problem.value = rng.randint(2, 30) if rng.random() < 0.5 else rng.randint(10, 200)
        problem.say('start', n=words.counted(problem.value, item))
    shared = False
    for _ in range(rng.choice([0, 1, 1, 2] if problem.steps else [1, 1, 2, 2, 3])):
        shared = event(problem)
        if shared:
            break
    problem.say('ask_share' if shared else 'ask_total', i=words.plural(item))


def event(problem):
    """One event; True if it ends the story with a share."""
    rng, value = problem.rng, problem.value
    kind = rng.random()
    divisors = [d for d in range(2, 10) if value % d == 0 and 2 <= value // d <= 150]
    if kind < 0.15 and divisors:
        number = rng.choice(divisors)
        problem.say('share', g=f'{number} {rng.choice(words.GROUPS)}')
        problem.step('/', number)
        return True
    if kind < 0.25 and 2 <= value <= 100:
        number = rng.randint(2, 9)
        problem.say('times', w=number)
        problem.step('*', number)
    elif kind < 0.65 or value < 3:
        number = rng.randint(2, 99) if rng.random() < 0.7 else rng.randint(2, 200)
        problem.say('gain', x=number)
        problem.step('+', number)
    else:
        number = rng.randint(2, value - 1)
        problem.say('loss', x=number)
        problem.step('-', number)
    return False


def shopping(problem):
    rng = problem.rng
    item = rng.choice(words.ITEMS)
    problem.value = rng.randint(2, 30)
    count = rng.randint(2, 9)
    problem.say('price', s=item, p=problem.value, q=words.counted(count, item))
    problem.step('*', count)
    if rng.random() < 0.5:
        paid = problem.value + rng.randint(1, 60)
        problem.say('change', c=paid)
        cost, problem.value = problem.value, paid
        problem.step('-', cost)
    else:
        problem.say('cost')


def travel(problem):
    rng = problem.rng
    problem.value = rng.randint(4, 90)
    hours = rng.randint(2, 9)
    problem.say('travel', v=rng.choice(VEHICLES), r=problem.value, h=hours)
    problem.step('*', hours)
    if rng.random() < 0.5:
        more = rng.randint(2, 99)
        problem.say('rest', x=more)
        problem.step('+', more)
    problem.say('distance')


def word_problem(rng, held_out=False):
    """(question, steps, answer)."""
    while True:
        problem = Problem(rng, held_out)
        rng.choices([stock, shopping, travel], [0.64, 0.2, 0.16])[0](problem)
        if problem.steps and 0 < problem.value < 1000:
            request = '' if held_out else rng.choice(REQUESTS)
            return request + ' '.join(problem.sentences), problem.steps, problem.value


# ---- plain sums --------------------------------------------------------------------------------------------


def product(rng):
    left, right = rng.randint(2, 100 if rng.random() < 0.6 else 40), rng.randint(2, 9)
    return (left, '*', right) if rng.random() < 0.6 else (right, '*', left)


def quotient(rng):
    right = rng.randint(2, 9)
    return right * rng.randint(2, rng.choice([20, 60, 150 if right < 7 else 100])), '/', right


def small_sum(rng):
    left, right = rng.randint(1, 99), rng.randint(1, 99)
    return (left, '+', right) if rng.random() < 0.5 else (max(left, right), '-', min(left, right))


def large_sum(rng):
    """A sum in columns, with the sizes of the word problems."""
    left, right = rng.randint(100, 700), rng.randint(1, rng.choice([99, 299]))
    if rng.random() < 0.5:
        return (left, '-', rng.randint(1, left)) if rng.random() < 0.5 else (left, '-', min(left, right))
    return (left, '+', right) if rng.random() < 0.7 else (right, '+', left)


def sum_question(rng):
    """Plain arithmetic, the drill behind the steps, in the number ranges of the problems: (left, sign, right)."""
    return rng.choices([product, quotient, small_sum, large_sum], [0.36, 0.12, 0.24, 0.28])[0](rng)
