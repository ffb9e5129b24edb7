#!/usr/bin/env python3
"""Trains monostep-nano in parts. A part runs one stage for some minutes, starts from the state of the part before (or
from an exported checkpoint, with a fresh optimiser, or from nothing), prints a log line every few steps, saves its
state and the weights in the released format every minute and at its end, and then measures itself on held-out cases.

Stages: pretrain (1k tokens, attention over all groups, the index distilled from it), long (8k tokens, attention over
the index's choice), draft (DSpark on the finished target). README.md has the command lines.
usage: train.py --stage STAGE --minutes M [--state FILE] [--from FOLDER] --out FOLDER"""

import argparse
import json
import os
import pathlib
import random
import sys
import time

import torch
from tokenizers import Tokenizer

import data
import losses
import model as model_file
from checkpoint import load_checkpoint, load_classes, save_checkpoint
from draft import Draft
from geometry import load_geometry
from held_out import measure
from model import Model
from optimiser import Optimiser

HERE = pathlib.Path(__file__).resolve().parent
BEGIN = time.time()
BALANCE = 4e-3  # step of the routing biases at the full learning rate
FIRST_STEPS = 3  # they compile; the minutes begin behind them
SAVE_EVERY = 60  # seconds
BROKEN = 3  # exit code: the loss is not a number


class Clock:
    """How much of a part is done. Nothing runs longer than `limit` seconds from the start of the program."""

    def __init__(self, options):
        self.options, self.begin, self.length = options, None, 1.0

    def share(self, step):
        if self.options.steps:
            return step / self.options.steps
        if step < FIRST_STEPS:
            return 0.0
        if self.begin is None:
            self.begin = time.time()
            self.length = max(1.0, min(60 * self.options.minutes, BEGIN + self.options.limit - self.begin))
        return (time.time() - self.begin) / self.length


class Trainer:
    def __init__(self, options):
        self.options = options
        self.device = 'cuda' if torch.cuda.is_available() else 'cpu'
        self.geometry = load_geometry(options.config)
        self.tokenizer_path = options.tokenizer / 'tokenizer.json'
        rows = options.rows or max(1, options.tokens // options.length)
        seed = options.seed * 100 + random.Random(f'{options.stage} {options.progress}').randrange(100)
        self.batches = data.Batches(
            self.tokenizer_path, seed, rows, options.length, options.long_share, options.workers
        )
        torch.manual_seed(options.seed)
        self.model, self.draft = Model(self.geometry, load_classes(options.tokenizer)), Draft(self.geometry)
        if options.start:
            load_checkpoint(options.start, self.model, self.draft)
        if options.fresh_draft:
            self.draft = Draft(self.geometry)
        self.model.to(self.device)
        self.draft.to(self.device)
        trained = {'draft': self.draft} if options.stage == 'draft' else {'model': self.model}
        self.optimiser = Optimiser(trained, options.muon_rate, options.adam_rate)
        self.warm_up = options.warm_up
        if options.state and options.state.exists():
            self.restore(torch.load(options.state, map_location=self.device))
        self.selection = 'dense' if options.stage == 'pretrain' else 'sparse'
        self.family_sums = torch.zeros(
            len(data.FAMILIES), 3, device=self.device
        )  # loss, hits, number of written tokens
        self.sums, self.log = {}, []

    def restore(self, state):
        self.model.load_state_dict(state['model'])
        self.draft.load_state_dict(state['draft'])
        if (state['stage'] == 'draft') == (self.options.stage == 'draft'):  # the same parameters
            self.optimiser.restore(state['optimiser'])
            self.warm_up = 0

    def save(self):
        """The weights in the released format, the log, and the full state; a state is replaced at once or not at all.
        """
        options = self.options
        if not torch.isfinite(self.model.head).all():
            self.give_up()
        options.out.mkdir(parents=True, exist_ok=True)
        save_checkpoint(options.out, self.model, self.draft)
        text = ''.join(json.dumps(line) + '\n' for line in self.log)
        (options.out / f'log_{options.stage}.jsonl').write_text(text, encoding='utf-8')
        if options.state:
            options.state.parent.mkdir(parents=True, exist_ok=True)
            fresh = options.state.with_suffix('.new')
            torch.save(
                {
                    'stage': options.stage,
                    'model': self.model.state_dict(),
                    'draft': self.draft.state_dict(),
                    'optimiser': self.optimiser.state(),
                },
                fresh,
            )
            os.replace(fresh, options.state)

    def give_up(self):
        print('train.py: not a number; the state is that of the last save', flush=True)
        sys.exit(BROKEN)

    def say(self, **values):
        self.log.append(values)
        shown = (
            f'{name} {value:.4g}' if isinstance(value, float) else f'{name} {value}' for name, value in values.items()
        )
        print('  '.join(shown), flush=True)

    def rate(self, step, share):
        """Learning rate: a short warm-up of a fresh optimiser, constant, then a straight line down to 2 % of it."""
        begin, end = self.options.progress
        progress = begin + (end - begin) * share
        return min(1.0, (step + 1) / max(1, self.warm_up)) * min(1.0, max(0.02, (1 - progress) / self.options.decay))

    def run(self):
        clock, step, saved, since = Clock(self.options), 0, time.time(), (0, time.time())
        while (share := clock.share(step)) < 1:
            rate = self.rate(step, share)
            self.one_step(step, rate)
            step += 1
            if step % self.options.log_every == 0 or step == 1:
                since = self.report(step, rate, since)
            if time.time() - saved > SAVE_EVERY:
                self.save()
                saved = time.time()
        self.batches.close()
        if step > since[0]:
            self.report(step, rate, since)
        self.save()
        if self.options.cases:
            model_file.FUSED.clear()  # other shapes: compiling for them would take longer than running
            self.say(**measure(self.model, self.tokenizer(), self.selection, self.options.length, self.options.cases))

    def tokenizer(self):
        return Tokenizer.from_file(str(self.tokenizer_path))

    def one_step(self, step, rate):
        """A step with the next batch. Where the compiled functions fail at first, the plain ones take over."""
        batch = [torch.from_numpy(part).to(self.device) for part in self.batches.next()]
        self.tokens = batch[0].numel()
        train_step = self.draft_step if self.options.stage == 'draft' else self.target_step
        try:
            values = train_step(*batch, rate)
        except Exception as error:
            if step >= FIRST_STEPS or not model_file.FUSED:
                raise
            print(
                f'compiled functions failed, going on without: {type(error).__name__}: {str(error)[:1500]}', flush=True
            )
            model_file.FUSED.clear()
            values = train_step(*batch, rate)
        self.optimiser.step(rate)
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0) + value.detach()

    def report(self, step, rate, since):
        """A log line of the steps after `since` (step, time); returns the new one."""
        num_steps, seconds = step - since[0], time.time() - since[1]
        means = {name: float(value) / num_steps for name, value in self.sums.items()}
        families = {
            name: f'{loss / count:.3f}/{hits / count:.3f}'
            for name, (loss, hits, count) in zip(data.FAMILIES, self.family_sums.tolist())
            if count
        }
        memory = {'gib': torch.cuda.max_memory_allocated() / 2**30} if self.device == 'cuda' else {}
        self.say(
            step=step,
            seconds=time.time() - BEGIN,
            rate=rate,
            **means,
            **families,
            tokens_per_s=num_steps * self.tokens / seconds,
            **memory,
        )
        self.sums = {}
        self.family_sums.zero_()
        if not all(value == value for value in means.values()):
            self.give_up()
        return step, time.time()

    def target_step(self, ids, weights, families, rate):
        ids, weights = ids.long(), weights.float()
        total, loss, index_loss, token_losses, hits, loads = losses.target_loss(
            self.model, self.selection, ids, weights
        )
        total.backward()
        loads = loads / self.geometry.num_experts_per_tok
        bias = self.model.layers.gate_bias
        bias += BALANCE * rate * torch.sign(1 / loads.shape[1] - loads)
        bias -= bias.mean(-1, keepdim=True)
        written = (weights[:, 1:].flatten() > 0.5).float()
        self.family_sums.index_add_(
            0, families[:, 1:].flatten().long(), torch.stack([token_losses * written, hits * written, written], -1)
        )
        return {
            'loss': loss,
            'written': (token_losses * written).sum() / written.sum(),
            'index': index_loss,
            'busiest': loads.max(),
        }

    def draft_step(self, ids, weights, families, rate):
        total, values = losses.draft_loss(self.model, self.draft, ids.long(), weights.float())
        total.backward()
        return values


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument('--stage', required=True, choices=('pretrain', 'long', 'draft'))
    parser.add_argument('--minutes', type=float, default=1, help='of training, behind the first steps')
    parser.add_argument(
        '--limit', type=float, default=1e9, help='seconds from the start of the program in which all steps end'
    )
    parser.add_argument('--steps', type=int, default=0, help='instead of minutes')
    parser.add_argument('--state', type=pathlib.Path, help='full state, read if there and written while training')
    parser.add_argument(
        '--from', dest='start', type=pathlib.Path, help='folder with an exported checkpoint to start from'
    )
    parser.add_argument('--fresh-draft', action='store_true', help='draft layers from nothing')
    parser.add_argument('--out', required=True, type=pathlib.Path, help='folder for the weights and the log')
    parser.add_argument('--config', type=pathlib.Path, default=HERE / 'tokenizer/config.json')
    parser.add_argument('--tokenizer', type=pathlib.Path, default=HERE / 'tokenizer')
    parser.add_argument('--length', type=int, default=0, help='tokens of a row: 1024, or 8192 in stage long')
    parser.add_argument('--tokens', type=int, default=32768, help='tokens of a step')
    parser.add_argument('--rows', type=int, default=0, help='rows of a step, instead of --tokens')
    parser.add_argument(
        '--long-share', type=float, default=-1, help='share of long documents: 0, or 0.06 in stage long'
    )
    parser.add_argument(
        '--progress', type=float, nargs=2, default=(0.0, 1.0), help='part of the learning rate schedule'
    )
    parser.add_argument('--decay', type=float, default=0.5, help='share of the schedule in which the rate falls')
    parser.add_argument('--warm-up', type=int, default=60)
    parser.add_argument('--muon-rate', type=float, default=0.02)
    parser.add_argument('--adam-rate', type=float, default=3e-3)
    parser.add_argument('--workers', type=int, default=1)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--log-every', type=int, default=50)
    parser.add_argument('--cases', type=int, default=0, help='held-out cases of each kind measured at the end')
    parser.add_argument('--compile', action='store_true')
    options = parser.parse_args()
    options.length = options.length or (8192 if options.stage == 'long' else 1024)
    options.long_share = options.long_share if options.long_share >= 0 else (0.06 if options.stage == 'long' else 0.0)
    return options


def main():
    options = parse()
    torch.set_float32_matmul_precision('high')  # TF32: bf16 values are exact in it
    if options.compile:
        torch._dynamo.config.recompile_limit = 64
        torch._inductor.config.emulate_precision_casts = True
        torch._inductor.config.shape_padding = False
        model_file.compile_fused()
    Trainer(options).run()


if __name__ == '__main__':
    main()
