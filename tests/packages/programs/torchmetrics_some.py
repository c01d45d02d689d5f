"""torchmetrics: classification, regression and image metrics."""

import torchmetrics
from common import codes, numbers, report

found = {}
target, logits = codes(40, below=4, seed=1), numbers(40, 4)
for name in (
    "Accuracy",
    "F1Score",
    "Precision",
    "Recall",
    "AUROC",
    "CohenKappa",
    "MatthewsCorrCoef",
    "ConfusionMatrix",
):
    metric = getattr(torchmetrics, name)(task="multiclass", num_classes=4)
    metric.update(logits[:20].softmax(1), target[:20])
    metric.update(logits[20:].softmax(1), target[20:])
    found[name] = metric.compute()
x, y = numbers(40), numbers(40, seed=5)
for name in (
    "MeanSquaredError",
    "MeanAbsoluteError",
    "R2Score",
    "PearsonCorrCoef",
    "SpearmanCorrCoef",
    "ExplainedVariance",
):
    found[name] = getattr(torchmetrics, name)()(x, y)
a, b = (numbers(1, 1, 32, 32, seed=i) / 2 + 0.5 for i in (1, 2))
found["SSIM"] = torchmetrics.image.StructuralSimilarityIndexMeasure(data_range=1.0)(a, b)
found["PSNR"] = torchmetrics.image.PeakSignalNoiseRatio(data_range=1.0)(a, b)
both = torchmetrics.MetricCollection(
    [torchmetrics.MeanSquaredError(), torchmetrics.MeanAbsoluteError()]
)
found |= {f"both {k}": v for k, v in both(x, y).items()}
report(**found)
