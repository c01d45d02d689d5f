"""pyro: stochastic variational inference, conditioned traces."""

import pyro
import pyro.distributions as dist
import torch
from common import numbers, report
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, init_to_value

data = numbers(20) + 2


def model(y):
    mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


guide = AutoDelta(model, init_loc_fn=init_to_value(values={"mean": torch.tensor(0.5)}))
svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.3}), Trace_ELBO())
losses = [svi.step(data) for _ in range(6)]
fixed = pyro.poutine.condition(model, {"mean": torch.tensor(1.0)})
likely = pyro.poutine.trace(fixed).get_trace(data).log_prob_sum()
report(losses=losses, mean=guide.median()["mean"], likely=likely)
