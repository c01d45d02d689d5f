"""transformers: Llama, trained and writing greedily, with beams and by chance."""

import torch
from common import codes, report, settle, train
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=50,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    bos_token_id=0,
    eos_token_id=49,
    pad_token_id=0,
)
model = settle(LlamaForCausalLM(config))
ids = codes(2, 12, below=50)
losses = train(model, lambda: model(input_ids=ids, labels=ids).loss)
model.eval()
with torch.no_grad():
    logits = model(ids).logits
written = model.generate(ids[:, :4], max_new_tokens=8, do_sample=False)
beams = model.generate(ids[:, :4], max_new_tokens=5, num_beams=3, do_sample=False)
sampled = model.generate(ids[:, :4], max_new_tokens=5, do_sample=True, top_k=5, top_p=0.9)
report(
    losses=losses,
    logits=logits[0, -1],
    written=written,
    beams=beams,
    length=next(iter(sampled.shape)),
)
