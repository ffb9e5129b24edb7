"""The Engram hash: primes, multipliers and table rows of n-grams of token classes, exact in int64. Used by model.py."""
import numpy as np
import torch


def is_prime(number):
    if number < 2:
        return False
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def tables(geometry):
    """For each Engram layer: (multipliers [n], primes [n-1][heads], rows). No prime is used twice."""
    found, used = [], set()
    bound = max(1, (2**63 - 1) // geometry.engram_compressed_vocab_size // 2)
    for layer in geometry.engram_layer_ids:
        draws = np.random.default_rng(10007 * layer).integers(0, bound, geometry.engram_max_ngram_size)
        primes = []
        for _ in range(geometry.engram_max_ngram_size - 1):
            candidate = geometry.engram_vocab_size
            chosen = []
            while len(chosen) < geometry.engram_n_heads:
                if candidate not in used and is_prime(candidate):
                    chosen.append(candidate)
                    used.add(candidate)
                candidate += 1
            primes.append(chosen)
        found.append((2 * draws + 1, primes, sum(map(sum, primes))))
    return found


class Hasher(torch.nn.Module):
    """Token ids [B, S] to rows [B, S, columns] of one layer's table. `dead` marks image positions."""

    def __init__(self, geometry, classes, table):
        super().__init__()
        multipliers, primes, self.rows = table
        flat = np.array(primes, np.int64).reshape(-1)
        self.pad_class = int(classes[geometry.engram_pad_token_id])
        self.heads = geometry.engram_n_heads
        self.register_buffer('classes', torch.as_tensor(np.asarray(classes), dtype=torch.int64), persistent=False)
        self.register_buffer('multipliers', torch.from_numpy(multipliers.astype(np.int64)), persistent=False)
        self.register_buffer('primes', torch.from_numpy(flat), persistent=False)
        self.register_buffer('offsets', torch.from_numpy(np.cumsum(flat) - flat), persistent=False)

    def forward(self, tokens, dead=None):
        current = self.classes[tokens]
        blocked = torch.zeros_like(tokens, dtype=torch.bool) if dead is None else dead
        hashes, mixed = [], None
        for back in range(len(self.multipliers)):
            shifted = torch.nn.functional.pad(current, (back, 0))[:, : current.shape[1]]
            gone = torch.nn.functional.pad(blocked, (back, 0), value=True)[:, : current.shape[1]]
            stopped = gone if back == 0 else stopped | gone
            term = torch.where(stopped, self.pad_class, shifted) * self.multipliers[back]
            mixed = term if mixed is None else mixed ^ term
            if back:
                hashes.append(mixed)
        wide = torch.stack(hashes, -1).repeat_interleave(self.heads, -1)
        return wide % self.primes + self.offsets
