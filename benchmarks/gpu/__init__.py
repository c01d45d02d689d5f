"""Claims about a real GPU, against PyTorch with CUDA on the same card where there is one."""
