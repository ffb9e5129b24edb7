#!/usr/bin/env python3
"""Training batches, made on the fly and in any amount: the same seed gives the same batches. Documents of tasks.py
are packed whole into rows; every token carries the weight of its loss (what the model writes counts fully, context a
little). As a script, writes the 1,000 held-out word problems: data.py --held-out FILE."""

import argparse
import json
import multiprocessing
import pathlib
import random

import numpy as np

import chat
import problems
import tasks
import texts
import tools

CONTEXT_WEIGHT, LONG_CONTEXT_WEIGHT = (
    0.05,
    0.01,
)  # of tokens that the model does not write; in documents of more than LONG tokens
LONG = 1024
FAMILIES = ('problems', 'sums', 'copy', 'retrieval', 'tools', 'text')  # train.py reports the loss of each
MIX = [
    (tasks.word_problem, 0.42),
    (tasks.sums, 0.1),
    (tasks.copying, 0.14),
    (tasks.retrieval, 0.19),
    (tools.tool_call, 0.06),
    (texts.story, 0.04),
    (texts.code, 0.03),
    (tasks.small_talk, 0.02),
]  # shares of the documents
FAMILY = dict(zip((make for make, _ in MIX), (0, 1, 2, 3, 4, 5, 5, 5)))
HELD_OUT_SEED, NUM_HELD_OUT = 20261, 1000


def long_document(rng):
    """Retrieval over 1k to about 8k tokens."""
    return tasks.retrieval(rng, size=int(4200 * 2 ** rng.uniform(0, 3.05)))


class Packer:
    """Rows [length] of whole documents, from an endless supply."""

    def __init__(self, tokenizer, seed, length, long_share=0.0):
        self.tokenizer, self.rng, self.length, self.long_share = tokenizer, random.Random(seed), length, long_share
        self.pad = tokenizer.token_to_id(chat.PAD)
        self.waiting = []

    def document(self):
        """(ids, weight of each token's loss, number of the family)."""
        if self.rng.random() < self.long_share:
            make, family = long_document, FAMILIES.index('retrieval')
        else:
            make = self.rng.choices([task for task, _ in MIX], [share for _, share in MIX])[0]
            family = FAMILY[make]
        ids, targets = chat.encode(make(self.rng), self.tokenizer)
        context = LONG_CONTEXT_WEIGHT if len(ids) > LONG else CONTEXT_WEIGHT
        return ids, [1.0 if target else context for target in targets], family

    def row(self):
        ids, weights, families, misses = [], [], [], 0
        while misses < 12 and len(ids) < self.length - 24:
            place = next((i for i, found in enumerate(self.waiting) if len(ids) + len(found[0]) <= self.length), None)
            found = self.waiting.pop(place) if place is not None else self.document()
            if len(found[0]) > self.length:
                continue
            if len(ids) + len(found[0]) > self.length:
                self.waiting.append(found)
                misses += 1
                continue
            ids += found[0]
            weights += [0.0, *found[1][1:]]  # nothing predicts the start of a document
            families += [found[2]] * len(found[0])
        self.waiting = self.waiting[-40:]
        short = self.length - len(ids)
        return ids + [self.pad] * short, weights + [0.0] * short, families + [0] * short

    def batch(self, rows):
        """ids, weights and families, each [rows, length]."""
        made = [self.row() for _ in range(rows)]
        return tuple(np.array(part, kind) for part, kind in zip(zip(*made), (np.int16, np.float16, np.int8)))


def produce(tokenizer_path, seed, length, long_share, rows, queue):
    from tokenizers import Tokenizer

    packer = Packer(Tokenizer.from_file(tokenizer_path), seed, length, long_share)
    while True:
        queue.put(packer.batch(rows))


class Batches:
    """Batches [rows, length] from worker processes, taken in turn so that the order does not depend on their speed."""

    def __init__(self, tokenizer_path, seed, rows, length, long_share=0.0, workers=1):
        context = multiprocessing.get_context('spawn')
        self.queues = [context.Queue(4) for _ in range(workers)]
        self.processes = [
            context.Process(
                target=produce,
                args=(str(tokenizer_path), seed * 1000 + number, length, long_share, rows, queue),
                daemon=True,
            )
            for number, queue in enumerate(self.queues)
        ]
        for process in self.processes:
            process.start()
        self.turn = 0

    def next(self):
        queue = self.queues[self.turn % len(self.queues)]
        self.turn += 1
        return queue.get()

    def close(self):
        for process in self.processes:
            process.terminate()


def held_out_problems():
    rng = random.Random(HELD_OUT_SEED)
    return [problems.word_problem(rng, held_out=True) for _ in range(NUM_HELD_OUT)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--held-out', required=True, type=pathlib.Path, help='JSON lines: question, steps, answer')
    with open(parser.parse_args().held_out, 'w', encoding='utf-8') as file:
        for question, steps, answer in held_out_problems():
            file.write(json.dumps({'question': question, 'steps': steps, 'answer': answer}) + '\n')


if __name__ == '__main__':
    main()
