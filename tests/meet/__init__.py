"""Random programs and small models, run in many ways, compared with PyTorch: faults sit where features meet."""
