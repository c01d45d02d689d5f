"""`webtorch.distributions`: probability distributions, constraints, transforms and divergences, as torch.distributions.

Samplers are operations of the table, so samples come from the device that the parameters are on; gradients of `rsample`
reach the parameters, also of gamma, beta and Dirichlet numbers. May import floors 0 to 4.
"""

from webtorch.distributions import constraints as constraints
from webtorch.distributions import kl as kl
from webtorch.distributions import transforms
from webtorch.distributions import utils as utils
from webtorch.distributions.bernoulli import Bernoulli
from webtorch.distributions.beta import Beta
from webtorch.distributions.binomial import Binomial
from webtorch.distributions.categorical import Categorical
from webtorch.distributions.cauchy import Cauchy
from webtorch.distributions.chi2 import Chi2
from webtorch.distributions.constraint_registry import biject_to, transform_to
from webtorch.distributions.continuous_bernoulli import ContinuousBernoulli
from webtorch.distributions.dirichlet import Dirichlet
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.exp_family import ExponentialFamily
from webtorch.distributions.exponential import Exponential
from webtorch.distributions.fishersnedecor import FisherSnedecor
from webtorch.distributions.gamma import Gamma
from webtorch.distributions.generalized_pareto import GeneralizedPareto
from webtorch.distributions.geometric import Geometric
from webtorch.distributions.gumbel import Gumbel
from webtorch.distributions.half_cauchy import HalfCauchy
from webtorch.distributions.half_normal import HalfNormal
from webtorch.distributions.independent import Independent
from webtorch.distributions.inverse_gamma import InverseGamma
from webtorch.distributions.kl import kl_divergence, register_kl
from webtorch.distributions.kumaraswamy import Kumaraswamy
from webtorch.distributions.laplace import Laplace
from webtorch.distributions.lkj_cholesky import LKJCholesky
from webtorch.distributions.log_normal import LogNormal
from webtorch.distributions.logistic_normal import LogisticNormal
from webtorch.distributions.lowrank_multivariate_normal import LowRankMultivariateNormal
from webtorch.distributions.mixture_same_family import MixtureSameFamily
from webtorch.distributions.multinomial import Multinomial
from webtorch.distributions.multivariate_normal import MultivariateNormal
from webtorch.distributions.negative_binomial import NegativeBinomial
from webtorch.distributions.normal import Normal
from webtorch.distributions.one_hot_categorical import (
    OneHotCategorical,
    OneHotCategoricalStraightThrough,
)
from webtorch.distributions.pareto import Pareto
from webtorch.distributions.poisson import Poisson
from webtorch.distributions.relaxed_bernoulli import RelaxedBernoulli
from webtorch.distributions.relaxed_categorical import RelaxedOneHotCategorical
from webtorch.distributions.studentT import StudentT
from webtorch.distributions.transformed_distribution import TransformedDistribution
from webtorch.distributions.transforms import *  # noqa: F403
from webtorch.distributions.uniform import Uniform
from webtorch.distributions.von_mises import VonMises
from webtorch.distributions.weibull import Weibull
from webtorch.distributions.wishart import Wishart

__all__ = [
    "Bernoulli",
    "Beta",
    "Binomial",
    "Categorical",
    "Cauchy",
    "Chi2",
    "ContinuousBernoulli",
    "Dirichlet",
    "Distribution",
    "Exponential",
    "ExponentialFamily",
    "FisherSnedecor",
    "Gamma",
    "GeneralizedPareto",
    "Geometric",
    "Gumbel",
    "HalfCauchy",
    "HalfNormal",
    "Independent",
    "InverseGamma",
    "Kumaraswamy",
    "LKJCholesky",
    "Laplace",
    "LogNormal",
    "LogisticNormal",
    "LowRankMultivariateNormal",
    "MixtureSameFamily",
    "Multinomial",
    "MultivariateNormal",
    "NegativeBinomial",
    "Normal",
    "OneHotCategorical",
    "OneHotCategoricalStraightThrough",
    "Pareto",
    "Poisson",
    "RelaxedBernoulli",
    "RelaxedOneHotCategorical",
    "StudentT",
    "TransformedDistribution",
    "Uniform",
    "VonMises",
    "Weibull",
    "Wishart",
    "biject_to",
    "kl_divergence",
    "register_kl",
    "transform_to",
]
__all__ += transforms.__all__
