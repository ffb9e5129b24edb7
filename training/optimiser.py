"""The optimiser of train.py: Muon for stacks of matrices, Adam for everything else."""

import torch

ADAM_NAMES = ('embed', 'head', 'gate', 'hc_', 'weights_proj', 'confidence', 'q_weight', 'k_weight', 'norm', 'sink')
TABLE_NAMES = ('embed', 'head')  # sparse or wide: the full Adam rate; all other parameters of Adam take SMALL of it
SMALL = 0.3


def is_matrix(name, parameter):
    return parameter.ndim >= 2 and min(parameter.shape[-2:]) >= 32 and not any(part in name for part in ADAM_NAMES)


def orthogonal(update):
    """Newton-Schulz iteration of [N, rows, columns] towards the nearest semi-orthogonal matrices."""
    matrix = update.bfloat16()
    tall = matrix.shape[-2] > matrix.shape[-1]
    matrix = matrix.transpose(-1, -2) if tall else matrix
    matrix = matrix / (matrix.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).bfloat16()
    for _ in range(5):
        square = matrix @ matrix.transpose(-1, -2)
        matrix = 3.4445 * matrix + (-4.775 * square + 2.0315 * square @ square) @ matrix
    return matrix.transpose(-1, -2) if tall else matrix


class Optimiser:
    """Steps both; `rate` scales the learning rates of a step."""

    def __init__(self, modules, muon_rate, adam_rate):
        named = [
            (f'{prefix}.{name}', parameter)
            for prefix, module in modules.items()
            for name, parameter in module.named_parameters()
        ]
        self.matrices = [parameter for name, parameter in named if is_matrix(name, parameter)]
        others = [(name, parameter) for name, parameter in named if not is_matrix(name, parameter)]
        wide = [parameter for name, parameter in others if any(part in name for part in TABLE_NAMES)]
        small = [parameter for name, parameter in others if not any(part in name for part in TABLE_NAMES)]
        self.parameters = [parameter for _, parameter in named]
        self.momenta = [torch.zeros_like(parameter) for parameter in self.matrices]
        self.muon_rate, self.adam_rate = muon_rate, adam_rate
        groups = [{'params': wide, 'scale': 1.0}, {'params': small, 'scale': SMALL}]
        self.adam = torch.optim.Adam(groups, lr=adam_rate, betas=(0.9, 0.95), eps=1e-10, fused=wide[0].is_cuda)

    @torch.no_grad()
    def step(self, rate):
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for group in self.adam.param_groups:
            group['lr'] = self.adam_rate * rate * group['scale']
        self.adam.step()
        for parameter, momentum in zip(self.matrices, self.momenta):
            if parameter.grad is None:
                continue
            momentum.lerp_(parameter.grad, 0.05)
            update = parameter.grad.lerp(momentum, 0.95)
            shape = update.shape
            turned = orthogonal(update.reshape(-1, *shape[-2:])).view(shape)
            parameter.mul_(1 - self.muon_rate * rate * 0.01)
            parameter.add_(turned, alpha=-self.muon_rate * rate * max(1, shape[-2] / shape[-1]) ** 0.5)
        for parameter in self.parameters:
            parameter.grad = None

    def state(self):
        return {'adam': self.adam.state_dict(), 'momenta': self.momenta}

    def restore(self, state):
        self.adam.load_state_dict(state['adam'])
        for momentum, saved in zip(self.momenta, state['momenta']):
            momentum.copy_(saved)
