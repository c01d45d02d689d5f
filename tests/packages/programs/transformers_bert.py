"""transformers: BERT as masked language model and classifier."""

import torch
from common import codes, report, settle, train
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

config = BertConfig(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=32,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    num_labels=3,
)
ids = codes(2, 12, below=50)
mask = torch.ones(2, 12, dtype=torch.long)
mask[1, 7:] = 0
model = settle(BertForMaskedLM(config))
losses = train(model, lambda: model(ids, attention_mask=mask, labels=ids).loss)
classifier = settle(BertForSequenceClassification(config))
labels = torch.tensor([0, 2])
more = train(classifier, lambda: classifier(ids, attention_mask=mask, labels=labels).loss)
report(losses=losses, more=more)
