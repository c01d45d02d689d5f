"""Files: state dicts and checkpoints through safetensors. May import anything below floor 6."""
