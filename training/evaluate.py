#!/usr/bin/env python3
"""Measures an exported checkpoint with the engine's CPU backend: held-out word problems, copying, retrieval by
length, tool calls, acceptance (tokens a step), calibration of the draft's confidence, and agreement with the PyTorch
model, teacher-forced (where PyTorch is installed). Prints a line for each part and writes all of them as JSON.
scripts/nano-report calls it. usage: evaluate.py --model FOLDER --monostep PROGRAM --out results.json [--full]"""

import argparse
import importlib.util
import json
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np
from tokenizers import Tokenizer

import chat
import data
import tasks
import tools

COUNTS = {
    'subset': {'problems': 100, 'copy': 40, 'tools': 40, 'retrieval': 2, 'agreement': 20, 'calibration': 12},
    'full': {'problems': 1000, 'copy': 200, 'tools': 200, 'retrieval': 8, 'agreement': 200, 'calibration': 100},
}
RETRIEVAL_CHARACTERS = {'1k': 4600, '2k': 9400, '4k': 19000, '8k': 37500}
LONGEST_SOLUTION = 256  # tokens
TOGETHER = 8  # prompts served by one call
TYPES = {'F32': '<f4', 'I32': '<i4', 'U8': 'u1', 'I64': '<i8', 'BF16': '<u2'}


def write_record(path, arrays):
    """Integers as a safetensors file."""
    raw, header = b'', {}
    for name, values in arrays.items():
        part = np.asarray(values, '<i4').tobytes()
        header[name] = {'dtype': 'I32', 'shape': [len(values)], 'data_offsets': [len(raw), len(raw) + len(part)]}
        raw += part
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    path.write_bytes(struct.pack('<Q', len(text)) + text + raw)


def read_record(path):
    raw = path.read_bytes()
    start = 8 + struct.unpack('<Q', raw[:8])[0]
    found = {}
    for name, entry in json.loads(raw[8:start]).items():
        if name != '__metadata__':
            begin, end = entry['data_offsets']
            values = np.frombuffer(raw[start + begin : start + end], TYPES[entry['dtype']]).reshape(entry['shape'])
            found[name] = (values.astype('<u4') << 16).view('<f4') if entry['dtype'] == 'BF16' else values
    return found


class Engine:
    def __init__(self, program, model):
        self.program, self.model = str(program), str(model)
        self.tokenizer = Tokenizer.from_file(str(pathlib.Path(model) / 'tokenizer.json'))

    def call(self, *arguments):
        done = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f'evaluate.py: {" ".join(map(str, arguments))[:200]}: {done.stderr[-500:]}')
        return done.stdout

    def encode(self, pieces):
        return chat.encode(pieces, self.tokenizer)[0]

    def generate(self, prompts, max_tokens, together=TOGETHER):
        """Answers [{token_ids, text, stats}] of prompts given as ids."""
        answers = []
        for first in range(0, len(prompts), together):
            chosen = [
                part for ids in prompts[first : first + together] for part in ('--token-ids', ' '.join(map(str, ids)))
            ]
            lines = self.call('generate', '--model', self.model, *chosen, '-n', max_tokens, '--json').splitlines()
            answers += [json.loads(line) for line in lines if line.startswith('{')]
        assert len(answers) == len(prompts)
        return answers

    def trace(self, mode, tokens, continuation=None):
        """The record of a run, {name: array}; bf16 comes as float32."""
        with tempfile.TemporaryDirectory() as folder:
            case, out = pathlib.Path(folder) / 'case', pathlib.Path(folder) / 'out'
            write_record(case, {'tokens': tokens} | ({} if continuation is None else {'dec.tokens': continuation}))
            self.call('trace', '--model', self.model, '--case', case, '--mode', mode, '--out', out)
            return read_record(out)

    def text(self, ids):
        """What was written, with the template's marks but without the stop token."""
        ids = ids[:-1] if ids and ids[-1] == self.tokenizer.token_to_id(chat.EOS) else ids
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def stopped(self, ids):
        return bool(ids) and ids[-1] == self.tokenizer.token_to_id(chat.EOS)


def tokens_per_step(answers):
    """Mean over all steps of all answers."""
    tokens = [len(answer['token_ids']) - 1 for answer in answers]
    steps = [count / answer['stats']['tokens_per_step'] for count, answer in zip(tokens, answers)]
    return sum(tokens) / max(sum(steps), 1e-9)


def word_problems(engine, count):
    cases = data.held_out_problems()[:count]
    prompts = [engine.encode(chat.render([{'role': 'user', 'content': question}])) for question, _, _ in cases]
    answers = engine.generate(prompts, LONGEST_SOLUTION)
    right = []
    for (_, _, wanted), answer in zip(cases, answers):
        found = re.search(r'Answer: (-?\d+)$', engine.text(answer['token_ids']))
        right.append(found is not None and int(found.group(1)) == wanted and engine.stopped(answer['token_ids']))
    return {'exact': float(np.mean(right)), 'cases': count, 'tokens_per_step': tokens_per_step(answers)}


def copying(engine, count):
    rng = random.Random(31)
    cases = [tasks.copy_case(rng) for _ in range(count)]
    answers = engine.generate([engine.encode(pieces) for pieces, _ in cases], 128)
    right = [
        engine.text(answer['token_ids']) == text and engine.stopped(answer['token_ids'])
        for (_, text), answer in zip(cases, answers)
    ]
    return {'exact': float(np.mean(right)), 'cases': count, 'tokens_per_step': tokens_per_step(answers)}


def retrieval(engine, count):
    """Per context length: right answers of `count`."""
    rng, found = random.Random(32), {}
    for name, size in RETRIEVAL_CHARACTERS.items():
        cases = [tasks.retrieval_case(rng, size) for _ in range(count)]
        prompts = [engine.encode(pieces) for pieces, _ in cases]
        answers = engine.generate(prompts, 48, together=1)
        right = sum(engine.text(answer['token_ids']) == value for (_, value), answer in zip(cases, answers))
        found[name] = {'right': right, 'cases': count, 'mean_tokens': float(np.mean([len(ids) for ids in prompts]))}
    return found


def parse_calls(text):
    """[(name, {parameter: value})] of a strictly written DSML calls, or None."""
    mark = chat.DSML
    found = re.fullmatch(rf'\n\n<{mark} calls>\n(.*)\n</{mark} calls>', text, re.S)
    if not found:
        return None
    calls = []
    for invoke in re.split(rf'(?<=</{mark} invoke>)\n', found.group(1)):
        match = re.fullmatch(rf'<{mark} invoke name="([^"]*)">\n(.*?)\n?</{mark} invoke>', invoke, re.S)
        if not match:
            return None
        arguments = {}
        for key, kind, value in re.findall(
            rf'<{mark} parameter name="([^"]*)" string="(true|false)">(.*?)</{mark} parameter>', match.group(2), re.S
        ):
            try:
                arguments[key] = value if kind == 'true' else json.loads(value)
            except json.JSONDecodeError:
                return None
        calls.append((match.group(1), arguments))
    return calls


def tool_calls(engine, count):
    rng = random.Random(33)
    cases = [tools.tool_case(rng) for _ in range(count)]
    answers = engine.generate([engine.encode(pieces) for pieces, _, _ in cases], 320)
    parsed = [parse_calls(engine.text(answer['token_ids'])) for answer in answers]
    right = [calls == [(name, arguments)] for calls, (_, name, arguments) in zip(parsed, cases)]
    return {
        'exact': float(np.mean(right)),
        'parsed': float(np.mean([calls is not None for calls in parsed])),
        'cases': count,
        'tokens_per_step': tokens_per_step(answers),
    }


def calibration(engine, count):
    """Confidence against acceptance in the steps that decoding takes, for held-out problems: table of ten bins and
    its error."""
    cases = data.held_out_problems()[-count:]
    prompts = [engine.encode(chat.render([{'role': 'user', 'content': question}])) for question, _, _ in cases]
    pairs = []
    for prompt, answer in zip(prompts, engine.generate(prompts, LONGEST_SOLUTION)):
        pairs += judged_drafts(engine.trace('decode', prompt, answer['token_ids']), answer['token_ids'])
    confidence, accepted = np.array(pairs, float).reshape(-1, 2).T
    bins, error = np.minimum((confidence * 10).astype(int), 9), 0.0
    table = []
    for number in range(10):
        inside = bins == number
        if inside.any():
            table.append(
                {
                    'bin': number / 10,
                    'drafts': int(inside.sum()),
                    'confidence': float(confidence[inside].mean()),
                    'accepted': float(accepted[inside].mean()),
                }
            )
            error += inside.mean() * abs(table[-1]['confidence'] - table[-1]['accepted'])
    return {'expected_calibration_error': float(error), 'drafts': len(pairs), 'table': table}


def judged_drafts(record, tokens):
    """(confidence, accepted) of every draft token whose predecessors were accepted, along the greedy loop."""
    drafts, confidence = record['dec.draft_ids'], 1 / (1 + np.exp(-record['dec.confidence'].astype(float)))
    pairs, step = [], 0  # drafts[step] is made when tokens[step] is the newest
    while step + 1 < len(tokens):
        accepted = 0
        for place in range(drafts.shape[1] - 1):
            if step + 1 + place >= len(tokens):
                break
            right = drafts[step][1 + place] == tokens[step + 1 + place]
            pairs.append((confidence[step][place], right))
            if not right:
                break
            accepted += 1
        step += accepted + 1
    return pairs


def agreement(engine, count):
    """Logits of the engine and of the PyTorch model on the same text: errors against the golden bounds of a free run.
    """
    import torch
    from checkpoint import load_checkpoint, load_classes
    from draft import Draft
    from geometry import load_geometry
    from model import Model

    geometry = load_geometry(engine.model)
    model = Model(geometry, load_classes(engine.model), exact=True)
    load_checkpoint(engine.model, model, Draft(geometry))
    bounds = json.loads(
        (pathlib.Path(__file__).resolve().parent.parent / 'tests/golden/micro/bounds.json').read_text(encoding='utf-8')
    )['bounds']['free']['logits']
    rng, errors, differing, clear = random.Random(34), [], 0, 0
    makers = [tasks.word_problem, tasks.copying, tasks.retrieval, tools.tool_call, tasks.small_talk]
    for number in range(count):
        ids = engine.encode(makers[number % len(makers)](rng))[:400]
        theirs = torch.from_numpy(np.array(engine.trace('free', ids)['logits'], np.float32))
        with torch.no_grad():
            ours = model.logits(model(torch.tensor([ids]))['hidden'])[0]
        errors.append((ours - theirs).abs().amax(-1).numpy())
        best = theirs.topk(2, -1)
        wrong = ours.argmax(-1) != best.indices[:, 0]
        margin = best.values[:, 0] - best.values[:, 1]
        differing += int(wrong.sum())
        clear += int((wrong & (margin > 2 * bounds[2])).sum())
    quantiles = np.quantile(np.concatenate(errors), (0.5, 0.9, 0.99, 1.0))
    return {
        'prompts': count,
        'positions': int(sum(map(len, errors))),
        'logit_error': quantiles.tolist(),
        'bounds': bounds,
        'argmax_differs': differing,
        'argmax_differs_beyond_bound': clear,
        'within': bool((quantiles <= bounds).all() and clear == 0),
    }


PARTS = {
    'problems': word_problems,
    'copy': copying,
    'retrieval': retrieval,
    'tools': tool_calls,
    'calibration': calibration,
    'agreement': agreement,
}


def can_run(part):
    """The comparison needs PyTorch; everything else needs the engine alone."""
    return part != 'agreement' or importlib.util.find_spec('torch') is not None


def known_results(path, mode):
    """What an earlier run of the same mode has left: parts that this one leaves out stay."""
    if path is None or not path.exists():
        return {}
    found = json.loads(path.read_text(encoding='utf-8'))
    return found if found.get('mode') == mode else {}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--model', required=True, type=pathlib.Path)
    parser.add_argument('--monostep', required=True, type=pathlib.Path)
    parser.add_argument('--out', type=pathlib.Path)
    parser.add_argument('--full', action='store_true', help='every case; else a subset')
    parser.add_argument('--parts', nargs='+', choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    engine, mode = Engine(options.monostep, options.model), 'full' if options.full else 'subset'
    results = known_results(options.out, mode) | {'mode': mode}
    for part in options.parts:
        if not can_run(part):
            print(f'{part:12} left out: no PyTorch here', flush=True)
            continue
        begin = time.time()
        results[part] = PARTS[part](engine, COUNTS[mode][part])
        print(f'{part:12} {time.time() - begin:6.0f} s  {json.dumps(results[part])}', flush=True)
        if options.out:
            options.out.write_text(json.dumps(results, indent=1) + '\n', encoding='utf-8')


if __name__ == '__main__':
    main()
