"""geoopt: parameters on manifolds, which are tensors of subclasses, and Riemannian optimizers."""

import geoopt
import torch
from common import numbers, report

ball = geoopt.PoincareBall(c=1.0)
x = geoopt.ManifoldParameter(numbers(4, 3, scale=0.3), manifold=ball)
y = numbers(4, 3, seed=1, scale=0.1)
adam, far = geoopt.optim.RiemannianAdam([x], lr=0.05), []
for _ in range(4):
    loss = ball.dist(x, y).mean()
    adam.zero_grad()
    loss.backward()
    adam.step()
    far.append(loss.item())
frame = geoopt.ManifoldParameter(
    torch.linalg.qr(numbers(4, 2, seed=2))[0], manifold=geoopt.Stiefel()
)
matrix = numbers(4, 4, seed=3)
sgd = geoopt.optim.RiemannianSGD([frame], lr=0.01, momentum=0.9)
for _ in range(4):
    loss = -torch.trace(frame.T @ (matrix @ matrix.T) @ frame)
    sgd.zero_grad()
    loss.backward()
    sgd.step()
report(far=far, x=x, frame=frame, shown=repr(x)[:13], manifold=repr(frame.manifold))
