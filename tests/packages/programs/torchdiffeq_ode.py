"""torchdiffeq: solvers and the adjoint method."""

import torch
from common import numbers, report, settle, train
from torchdiffeq import odeint, odeint_adjoint


class Field(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = settle(
            torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
        )

    def forward(self, t, y):
        return self.net(y**3)


field, start, times = Field(), numbers(4, 2, scale=0.5), torch.linspace(0, 1, 5)
fixed = {"options": {"step_size": 0.1}}
ends = {
    m: odeint(field, start, times, method=m, **(fixed if m in ("rk4", "midpoint") else {}))[-1]
    for m in ("dopri5", "bosh3", "rk4", "midpoint")
}
losses = train(field, lambda: odeint_adjoint(field, start, times).pow(2).mean())
report(losses=losses, **ends)
