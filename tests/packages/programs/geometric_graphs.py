"""torch-geometric: graph convolutions, attention, pooling over graphs, its loader and data classes."""

import torch
import torch.nn.functional as F
from common import numbers, report, settle, train
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv, global_mean_pool
from torch_geometric.utils import add_self_loops, degree, softmax, to_dense_adj

x, y = numbers(5, 8), torch.tensor([0, 1, 2, 3, 0])
edges = torch.tensor([[0, 1, 1, 2, 3, 4, 4, 0], [1, 0, 2, 1, 4, 3, 0, 4]])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = GCNConv(8, 16), GATConv(16, 8, heads=2), SAGEConv(16, 4)

    def forward(self, x, edges):
        return self.c(F.elu(self.b(F.relu(self.a(x, edges)), edges)), edges)


net = settle(Net())
losses = train(net, lambda: F.cross_entropy(net(x, edges), y), steps=4)
isomorphism = settle(GINConv(torch.nn.Linear(8, 3)))
graphs = [
    Data(
        x=numbers(4, 8, seed=i),
        edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]),
        y=torch.tensor([i % 2]),
    )
    for i in range(4)
]
pooled = [global_mean_pool(b.x, b.batch).sum().item() for b in DataLoader(graphs, batch_size=2)]
with torch.no_grad():
    report(
        losses=losses, gin=isomorphism(x, edges), pooled=pooled, degrees=degree(edges[0]),
        dense=to_dense_adj(edges)[0], loops=add_self_loops(edges)[0],
        attention=softmax(numbers(8), edges[1]),
    )  # fmt: skip
