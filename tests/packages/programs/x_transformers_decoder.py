"""x-transformers: a decoder, trained and writing."""

from common import codes, report, settle, train
from x_transformers import (
    AutoregressiveWrapper,
    Decoder,
    TransformerWrapper,
)

model = TransformerWrapper(
    num_tokens=50,
    max_seq_len=32,
    attn_layers=Decoder(
        dim=32,
        depth=2,
        heads=4,
        attn_dim_head=8,
        rotary_pos_emb=True,
        use_rmsnorm=True,
        ff_glu=True,
    ),
)
wrapped = settle(AutoregressiveWrapper(model))
ids = codes(2, 16, below=50)
losses = train(wrapped, lambda: wrapped(ids))
written = wrapped.generate(ids[:, :4], 8, temperature=0.0)
report(losses=losses, written=written)
