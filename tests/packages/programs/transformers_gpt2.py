"""transformers: GPT-2, trained and writing."""

import torch
from common import codes, report, settle, train
from transformers import GPT2Config, GPT2LMHeadModel

config = GPT2Config(
    vocab_size=50,
    n_positions=32,
    n_embd=32,
    n_layer=2,
    n_head=4,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    bos_token_id=0,
    eos_token_id=49,
)
model = settle(GPT2LMHeadModel(config))
ids = codes(2, 12, below=50)
losses = train(model, lambda: model(ids, labels=ids).loss)
model.eval()
with torch.no_grad():
    logits = model(ids).logits
written = model.generate(ids[:, :4], max_new_tokens=8, do_sample=False, pad_token_id=0)
report(losses=losses, logits=logits[0, -1], written=written)
