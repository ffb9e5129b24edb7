"""The losses of train.py: of the target model over its tokens, and of the draft layers at places inside what the
model writes."""

import torch

from model import fused

DRAFT_EVERY = 8  # tokens of a batch for each draft


@fused
def token_losses(hidden, head, targets):
    """Cross-entropy [T] and whether the best token is the target."""
    logits = torch.nn.functional.linear(hidden.float(), head.bfloat16().float())
    correct = torch.logsumexp(logits, -1) - logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return correct, logits.argmax(-1) == targets


@fused
def draft_losses(base, bias, confidence, teacher, following, live):
    """For rows [N, R]: KL to the target's distribution, confidence loss, and what was guessed right. teacher [N, R,
    V] are the target's logits of the places that the rows predict; following [N, R] the tokens of the text there."""
    logits = base + bias
    wanted = torch.softmax(teacher, -1)
    divergence = (wanted * (torch.log_softmax(teacher, -1) - torch.log_softmax(logits, -1))).sum(-1)
    guess = logits.argmax(-1)
    right = guess == teacher.argmax(-1)
    correct_before = torch.nn.functional.pad((guess == following)[:, :-1].float(), (1, 0), value=1.0)
    on_path = torch.cumprod(correct_before, -1) * live
    doubt = torch.nn.functional.binary_cross_entropy_with_logits(confidence, right.float(), reduction='none')
    weight = live * (0.2 + 0.8 * on_path)
    return (divergence * weight).sum() / weight.sum(), (doubt * on_path).sum() / on_path.sum(), right, on_path


def target_loss(model, selection, ids, weights):
    """What to go back from, and the values [T] behind it: (loss + index loss, loss, index loss, losses, hits, loads).
    """
    result = model(ids, selection)
    losses, hits = token_losses(result['hidden'][:, :-1].flatten(0, 1), model.head, ids[:, 1:].flatten())
    weight = weights[:, 1:].flatten()
    loss = (losses * weight).sum() / weight.sum()
    return loss + result['index_loss'], loss, result['index_loss'], losses.detach(), hits, result['loads']


def draft_places(weights, rows):
    """Anchors [B, K], drawn where the model writes, and the places [B, K, rows] of each draft row's own token; the
    row predicts the next one."""
    length = weights.shape[1]
    written = (
        weights[:, 2 : length - rows] > 0.5
    ).float()  # at position p: of token p + 2, which the first row predicts
    anchors = torch.multinomial(written + 1e-6, length // DRAFT_EVERY)
    return anchors, anchors.unsqueeze(-1) + 1 + torch.arange(rows, device=weights.device)


def draft_loss(model, draft, ids, weights):
    """(what to go back from, the reported values)."""
    rows = model.geometry.dspark_block_size
    anchors, places = draft_places(weights, rows)
    pick = torch.arange(ids.shape[0], device=ids.device)[:, None, None]
    own, following = ids[pick, places], ids[pick, places + 1]
    live = torch.cumprod(
        (weights[pick, places + 1] > 0.5).float().flatten(0, 1), -1
    )  # nothing counts behind an answer's end
    useful = live[:, 0] > 0
    with torch.no_grad():
        result = model(ids, 'sparse')
        teacher = model.logits(result['hidden'][pick, places]).flatten(0, 1)
    collapsed, base = draft(model, result['taps'], own[:, :, 0], anchors)
    bias, embedded = draft.markov(own.flatten(0, 1))
    confidence = draft.confidence_logit(collapsed.flatten(0, 1).detach(), embedded.detach())
    divergence, doubt, right, on_path = draft_losses(
        base.flatten(0, 1), bias, confidence, teacher, following.flatten(0, 1), live
    )
    accepted = (torch.cumprod(right.float() * live, -1)).sum() / useful.sum().clamp(min=1)
    error = calibration_error(torch.sigmoid(confidence.detach()), right.float(), on_path)
    return divergence + 0.3 * doubt, {
        'divergence': divergence,
        'doubt': doubt,
        'accepted': 1 + accepted,
        'calibration': error,
    }


def calibration_error(confidence, right, weight, bins=10):
    """Expected calibration error of weighted cases."""
    total, error = weight.sum().clamp(min=1), 0
    for number in range(bins):
        inside = weight * ((confidence >= number / bins) & (confidence < (number + 1) / bins + (number + 1 == bins)))
        error = error + ((confidence - right) * inside).sum().abs()
    return error / total
