"""vector-quantize-pytorch: its quantizers."""

from common import numbers, report, settle
from vector_quantize_pytorch import FSQ, ResidualVQ, VectorQuantize

x = numbers(2, 16, 8)
quantizer = settle(VectorQuantize(dim=8, codebook_size=32, decay=0.8, commitment_weight=1.0))
out, indices, loss = quantizer(x)
fsq = settle(FSQ(levels=[8, 5, 5], dim=8))
finite, places = fsq(x)
residual = settle(ResidualVQ(dim=8, num_quantizers=2, codebook_size=16)).eval()
layers, chosen, losses = residual(x)
report(
    out=out[0, 0],
    indices=indices,
    loss=loss,
    places=places,
    finite=finite[0, 0],
    chosen=chosen,
    losses=losses,
    codebook=quantizer.codebook[0],
)
