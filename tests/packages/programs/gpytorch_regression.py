"""gpytorch: exact Gaussian process regression."""

import gpytorch
import torch
from common import numbers, report, train


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


x = torch.linspace(0, 1, 20)
y = torch.sin(6 * x) + numbers(20, scale=0.1)
likelihood = gpytorch.likelihoods.GaussianLikelihood()
model = Model(x, y, likelihood)
marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
adam = torch.optim.Adam(model.parameters(), lr=0.1)
losses = train(model, lambda: -marginal(model(x), y), 6, adam)
model.eval(), likelihood.eval()
with torch.no_grad():
    found = likelihood(model(torch.tensor([0.15, 0.5, 0.77])))
    report(losses=losses, mean=found.mean, variance=found.variance)
