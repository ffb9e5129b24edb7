#!/usr/bin/env python3
"""Trains monostep-nano in parts. A part runs one stage for some minutes, starts from the state of the part before (or from an
exported checkpoint, with a fresh optimiser, or from nothing), prints a log line every few steps, measures itself on held-out
cases, and leaves its state and the weights in the released format.

Stages: pretrain (1k tokens, attention over all groups, the index distilled from it), long (8k tokens, attention over the index's
choice), draft (DSpark on the finished target). README.md has the command lines.
usage: train.py --stage STAGE --minutes M [--state FILE] [--from FOLDER] --out FOLDER"""
import argparse
import json
import pathlib
import random
import sys
import time

import torch
from tokenizers import Tokenizer

import chat
import data
import model as model_file
import tasks
from checkpoint import load_checkpoint, load_classes, save_checkpoint
from draft import Draft
from geometry import load_geometry
from model import Model, fused
from optimiser import Optimiser

HERE = pathlib.Path(__file__).resolve().parent
BALANCE = 1e-3  # step of the routing biases
DRAFT_EVERY = 8  # tokens of a batch for each draft


@fused
def token_losses(hidden, head, targets):
    """Cross-entropy [T] and whether the best token is the target."""
    logits = torch.nn.functional.linear(hidden.float(), head.bfloat16().float())
    correct = torch.logsumexp(logits, -1) - logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return correct, logits.argmax(-1) == targets


@fused
def draft_losses(base, bias, confidence, teacher, following, live):
    """For rows [N, R]: KL to the target's distribution, confidence loss, and what was guessed right. teacher [N, R, V] are the
    target's logits of the places that the rows predict; following [N, R] the tokens of the text there."""
    logits = base + bias
    wanted = torch.softmax(teacher, -1)
    divergence = (wanted * (torch.log_softmax(teacher, -1) - torch.log_softmax(logits, -1))).sum(-1)
    guess = logits.argmax(-1)
    right = guess == teacher.argmax(-1)
    on_path = torch.cumprod(torch.nn.functional.pad((guess == following)[:, :-1].float(), (1, 0), value=1.0), -1) * live
    doubt = torch.nn.functional.binary_cross_entropy_with_logits(confidence, right.float(), reduction='none')
    weight = live * (0.2 + 0.8 * on_path)
    return (divergence * weight).sum() / weight.sum(), (doubt * on_path).sum() / on_path.sum(), right, on_path


class Trainer:
    def __init__(self, options):
        self.options = options
        self.device = 'cuda' if torch.cuda.is_available() else 'cpu'
        self.geometry = load_geometry(options.config)
        classes = load_classes(options.tokenizer)
        self.tokenizer_path = options.tokenizer / 'tokenizer.json'
        self.tokenizer = Tokenizer.from_file(str(self.tokenizer_path))
        torch.manual_seed(options.seed)
        self.model, self.draft = Model(self.geometry, classes), Draft(self.geometry)
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
        rows = options.rows or max(1, options.tokens // options.length)
        seed = options.seed * 100 + random.Random(f'{options.stage} {options.progress}').randrange(100)
        self.batches = data.Batches(self.tokenizer_path, seed, rows, options.length, options.long_share, options.workers)
        self.log = []

    def restore(self, state):
        self.model.load_state_dict(state['model'])
        self.draft.load_state_dict(state['draft'])
        if (state['stage'] == 'draft') == (self.options.stage == 'draft'):  # the same parameters
            self.optimiser.restore(state['optimiser'])
            self.warm_up = 0

    def save(self):
        if self.options.state:
            self.options.state.parent.mkdir(parents=True, exist_ok=True)
            torch.save({'stage': self.options.stage, 'model': self.model.state_dict(), 'draft': self.draft.state_dict(),
                        'optimiser': self.optimiser.state()}, self.options.state)
        self.options.out.mkdir(parents=True, exist_ok=True)
        save_checkpoint(self.options.out, self.model, self.draft)
        (self.options.out / f'log_{self.options.stage}.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in self.log), encoding='utf-8')

    def say(self, **values):
        self.log.append(values)
        print('  '.join(f'{name} {value:.4g}' if isinstance(value, float) else f'{name} {value}' for name, value in values.items()), flush=True)

    def rate(self, step, share):
        """Learning rate: a short warm-up of a fresh optimiser, constant, then a straight line down to 2 % of it."""
        begin, end = self.options.progress
        progress = begin + (end - begin) * share
        return min(1.0, (step + 1) / max(1, self.warm_up)) * min(1.0, max(0.02, (1 - progress) / self.options.decay))

    def next_batch(self):
        ids, weights = self.batches.next()
        return torch.from_numpy(ids).to(self.device).long(), torch.from_numpy(weights).to(self.device).float()

    def run(self):
        options, begin, step, since, sums = self.options, time.time(), 0, time.time(), {}
        while True:
            share = step / options.steps if options.steps else (time.time() - begin) / (60 * options.minutes)
            if share >= 1:
                break
            values = self.draft_step() if options.stage == 'draft' else self.target_step()
            self.optimiser.step(self.rate(step, share))
            for name, value in values.items():
                sums[name] = sums.get(name, 0) + value.detach()
            step += 1
            if step % options.log_every == 0 or step == 1:
                number = options.log_every if step > 1 else 1
                means = {name: float(value) / number for name, value in sums.items()}
                spent = time.time() - since
                memory = torch.cuda.max_memory_allocated() / 2**30 if self.device == 'cuda' else 0.0
                self.say(step=step, seconds=time.time() - begin, rate=self.rate(step, share), **means, tokens_per_s=number * self.tokens / spent, gib=memory)
                since, sums = time.time(), {}
                if not all(value == value for value in means.values()):
                    sys.exit('train.py: the loss is not a number')
            if step == 1:
                sums = {}
        self.batches.close()
        if options.cases:
            model_file.FUSED.clear()  # other shapes: compiling for them would take longer than running
            self.say(**self.measure(options.cases))
        self.save()

    def target_step(self):
        ids, weights = self.next_batch()
        self.tokens = ids.numel()
        result = self.model(ids, 'dense' if self.options.stage == 'pretrain' else 'sparse')
        losses, hits = token_losses(result['hidden'][:, :-1].flatten(0, 1), self.model.head, ids[:, 1:].flatten())
        weight = weights[:, 1:].flatten()
        loss = (losses * weight).sum() / weight.sum()
        (loss + result['index_loss']).backward()
        loads = result['loads'] / self.geometry.num_experts_per_tok
        bias = self.model.layers.gate_bias
        bias += BALANCE * torch.sign(1 / loads.shape[1] - loads)
        bias -= bias.mean(-1, keepdim=True)
        written = (weight > 0.5).float()
        return {'loss': loss, 'written': (losses * written).sum() / written.sum(), 'hits': (hits * written).sum() / written.sum(),
                'index': result['index_loss'], 'busiest': loads.max()}

    def draft_step(self):
        """Drafts at random places inside what the model writes; only such places count."""
        ids, weights = self.next_batch()
        self.tokens = ids.numel()
        rows = self.geometry.dspark_block_size
        with torch.no_grad():
            result = self.model(ids, 'sparse')
        batch, length = ids.shape
        device = self.device
        written = (weights[:, 2:length - rows] > 0.5).float()  # at position p: of token p + 2, which the first row predicts
        anchors = torch.multinomial(written + 1e-6, length // DRAFT_EVERY)
        places = anchors.unsqueeze(-1) + 1 + torch.arange(rows, device=device)  # of each row's own token; the row predicts the next
        pick = torch.arange(batch, device=device)[:, None, None]
        own, following = ids[pick, places], ids[pick, places + 1]
        live = (weights[pick, places + 1] > 0.5).float().flatten(0, 1)
        live = torch.cumprod(live, -1)  # nothing counts behind the end of an answer
        useful = live[:, 0] > 0
        with torch.no_grad():
            teacher = self.model.logits(result['hidden'][pick, places]).flatten(0, 1)
        collapsed, base = self.draft(self.model, result['taps'], own[:, :, 0], anchors)
        bias, embedded = self.draft.markov(own.flatten(0, 1))
        confidence = self.draft.confidence_logit(collapsed.flatten(0, 1).detach(), embedded.detach())
        live = live * useful.unsqueeze(-1)
        divergence, doubt, right, on_path = draft_losses(base.flatten(0, 1), bias, confidence, teacher, following.flatten(0, 1), live)
        (divergence + 0.3 * doubt).backward()
        accepted = (torch.cumprod(right.float() * live, -1)).sum() / useful.sum().clamp(min=1)
        error = calibration_error(torch.sigmoid(confidence.detach()), right.float(), on_path)
        return {'divergence': divergence, 'doubt': doubt, 'accepted': 1 + accepted, 'calibration': error}

    @torch.no_grad()
    def measure(self, num_cases):
        """Share of held-out answers whose every token is the model's first choice, given the text before it."""
        rng = random.Random(99)
        wanted = {
            'problems': lambda: answered(chat.render([{'role': 'user', 'content': (problem := tasks.problems.word_problem(rng, True))[0]}]),
                                         '\n'.join(problem[1]) + f'\nAnswer: {problem[2]}'),
            'copy': lambda: answered(*tasks.copy_case(rng)),
            'retrieval': lambda: answered(*tasks.retrieval_case(rng, 2000)),
            'tools': lambda: called(*tasks.tool_case(rng))}
        if self.options.length > 4096:
            wanted['retrieval_4k'] = lambda: answered(*tasks.retrieval_case(rng, 16000))
        return {name: self.exact_share([make() for _ in range(num_cases)]) for name, make in wanted.items()}

    def exact_share(self, cases):
        right = 0
        longest = self.options.length
        for first in range(0, len(cases), 16):
            encoded = [chat.encode(pieces, self.tokenizer) for pieces in cases[first:first + 16]]
            encoded = [pair for pair in encoded if len(pair[0]) <= longest]
            ids = torch.full((16, longest), self.tokenizer.token_to_id(chat.PAD))
            targets = torch.zeros(16, longest, dtype=torch.bool)
            for row, (tokens, written) in enumerate(encoded):
                ids[row, :len(tokens)], targets[row, :len(tokens)] = torch.tensor(tokens), torch.tensor(written)
            for part in range(0, 16, 4):
                chunk = ids[part:part + 4].to(self.device)
                hidden = self.model(chunk, 'dense' if self.options.stage == 'pretrain' else 'sparse')['hidden'][:, :-1]
                best = torch.cat([self.model.logits(one).argmax(-1, keepdim=True).T for one in hidden])
                wrong = (best != chunk[:, 1:]) & targets[part:part + 4, 1:].to(self.device)
                present = targets[part:part + 4].any(-1).to(self.device)
                right += int((~wrong.any(-1) & present).sum())
        return right / len(cases)


def calibration_error(confidence, right, weight, bins=10):
    """Expected calibration error of weighted cases."""
    total, error = weight.sum().clamp(min=1), 0
    for number in range(bins):
        inside = weight * ((confidence >= number / bins) & (confidence < (number + 1) / bins + (number + 1 == bins)))
        error = error + ((confidence - right) * inside).sum().abs()
    return error / total


def answered(pieces, text):
    return [*pieces, chat.Piece(text, False, True), chat.Piece(chat.EOS, True, True)]


def called(pieces, name, arguments):
    return [*pieces, chat.Piece('\n\n', False, True), *chat.calls_text([(name, arguments)]), chat.Piece(chat.EOS, True, True)]


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument('--stage', required=True, choices=('pretrain', 'long', 'draft'))
    parser.add_argument('--minutes', type=float, default=1)
    parser.add_argument('--steps', type=int, default=0, help='instead of minutes')
    parser.add_argument('--state', type=pathlib.Path, help='full state, read if there and written at the end')
    parser.add_argument('--from', dest='start', type=pathlib.Path, help='folder with an exported checkpoint to start from')
    parser.add_argument('--fresh-draft', action='store_true', help='draft layers from nothing')
    parser.add_argument('--out', required=True, type=pathlib.Path, help='folder for the weights and the log')
    parser.add_argument('--config', type=pathlib.Path, default=HERE / 'tokenizer/config.json')
    parser.add_argument('--tokenizer', type=pathlib.Path, default=HERE / 'tokenizer')
    parser.add_argument('--length', type=int, default=0, help='tokens of a row: 1024, or 8192 in stage long')
    parser.add_argument('--tokens', type=int, default=32768, help='tokens of a step')
    parser.add_argument('--rows', type=int, default=0, help='rows of a step, instead of --tokens')
    parser.add_argument('--long-share', type=float, default=-1, help='share of long documents: 0, or 0.06 in stage long')
    parser.add_argument('--progress', type=float, nargs=2, default=(0.0, 1.0), help='part of the learning rate schedule')
    parser.add_argument('--decay', type=float, default=0.5, help='share of the schedule in which the rate falls')
    parser.add_argument('--warm-up', type=int, default=60)
    parser.add_argument('--muon-rate', type=float, default=0.02)
    parser.add_argument('--adam-rate', type=float, default=3e-3)
    parser.add_argument('--workers', type=int, default=1)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--log-every', type=int, default=20)
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
