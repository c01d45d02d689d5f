"""Claims about the CPU, against PyTorch eager on as many threads."""
